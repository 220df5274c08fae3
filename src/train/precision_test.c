/* precision_test.c - what runs on which device. */
#include "test.h"
#include "train/precision.h"

#include <string.h>

TEST(cpu_runs_all_three, "P1 P4: the CPU does fp32, bf16 and fp16 without a word")
{
    struct precision_device d = precision_cpu();
    char warning[256];
    for (int i = 0; i < 3; i++) {
        enum precision p;
        CHECK(precision_parse(precision_name((enum precision)i), &p) && p == (enum precision)i);
        CHECK(precision_on(&d, p, warning, sizeof warning) == p);
        CHECK_STR(warning, "");
    }
}

TEST(what_a_device_lacks, "P4: what the device cannot do runs in fp32, with a warning")
{
    char warning[256];
    struct precision_device turing = precision_cuda("cuda:0", 75), mps = precision_mps();
    CHECK(precision_on(&turing, PRECISION_BF16, warning, sizeof warning) == PRECISION_FP32);
    CHECK(strstr(warning, "cuda:0 cannot run bf16: the run is in fp32"));
    CHECK(precision_on(&turing, PRECISION_FP16, warning, sizeof warning) == PRECISION_FP16);
    CHECK_STR(warning, "");
    CHECK(precision_on(&mps, PRECISION_BF16, warning, sizeof warning) == PRECISION_FP32);
    CHECK(strstr(warning, "mps"));
    CHECK(precision_on(&mps, PRECISION_FP16, warning, sizeof warning) == PRECISION_FP32);
}

TEST(advice_by_card, "P11: bf16 on Ampere and later, fp16 with a scaler on Volta and Turing")
{
    char warning[256];
    struct precision_device ampere = precision_cuda("cuda:0", 86);
    struct precision_device turing = precision_cuda("cuda:0", 75);
    struct precision_device volta = precision_cuda("cuda:0", 70);
    struct precision_device pascal = precision_cuda("cuda:0", 61);
    CHECK(precision_advised(&ampere) == PRECISION_BF16);
    CHECK(precision_advised(&turing) == PRECISION_FP16);
    CHECK(precision_advised(&volta) == PRECISION_FP16);
    CHECK(precision_advised(&pascal) == PRECISION_FP32);
    (void)precision_on(&turing, PRECISION_BF16, warning, sizeof warning);
    CHECK(strstr(warning, "fp16 with its gradient scaler"));
}
