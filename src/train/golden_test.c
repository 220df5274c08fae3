/* golden_test.c - with every lever at its default the step programs are those of the golden dumps.
 *
 * tests/corpus/golden/NAME.txt holds every program of a small run. SNUG_GOLDEN=write writes them
 * anew: look at the difference before it is committed, since it means that existing graphs run
 * other programs than before. */
#include "train/train_test_support.h"

#include "base/env.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_all(struct trial *t, struct str *out)
{
    const struct step_set *s = train_steps(t->train);
    for (int i = 0; i < s->n; i++) {
        ir_print(s->programs[i], out);
        str_add(out, "\n");
    }
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct str s;
    char part[4096];
    size_t n;
    if (!f)
        test_fail(__FILE__, __LINE__, "no file \"%s\"; SNUG_GOLDEN=write makes it", path);
    str_init(&s);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        str_add_n(&s, part, n);
    CHECK(fclose(f) == 0);
    return s.data;
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Fails with the first line that differs. */
static void check_lines(const char *name, const char *is, const char *was)
{
    int line = 1;
    size_t from = 0, i = 0;
    for (; is[i] && is[i] == was[i]; i++) {
        if (is[i] == '\n') {
            line++;
            from = i + 1;
        }
    }
    if (is[i] == was[i])
        return;
    test_fail(
        __FILE__, __LINE__, "%s line %d:\n    is  %.*s\n    was %.*s", name, line,
        (int)strcspn(is + from, "\n"), is + from, (int)strcspn(was + from, "\n"), was + from);
}

static void check_golden(const char *name, const struct trial_setup *s)
{
    struct trial t;
    struct err e;
    struct str text;
    char path[512];
    (void)snprintf(path, sizeof path, SNUG_SOURCE_DIR "/tests/corpus/golden/%s.txt", name);
    CHECK_OK(trial_plan(&t, s, &e), &e);
    str_init(&text);
    print_all(&t, &text);
    const char *mode = getenv("SNUG_GOLDEN");
    if (mode && strcmp(mode, "write") == 0)
        write_text(path, text.data);
    char *was = read_text(path);
    check_lines(name, text.data, was);
    mem_free(was);
    str_release(&text);
    trial_close(&t);
}

static struct trial_setup with_validation(struct trial_setup s)
{
    s.val = s.train;
    s.val.n = 5;
    return s;
}

TEST(golden_cnn, "the programs of a small convolutional network are those of the dump")
{
    struct trial_setup s = with_validation(trial_cnn(10, 4));
    check_golden("cnn", &s);
}

TEST(golden_mlp, "the programs of a small MLP are those of the dump")
{
    struct trial_setup s = with_validation(trial_mlp(10, 4));
    check_golden("mlp", &s);
}

TEST(golden_levers, "P3 A1 A3: accumulation, clipping, mixed precision: the dumps")
{
    struct trial_setup s = with_validation(trial_mlp(14, 4));
    s.config.accumulate = 2;
    s.config.max_norm = 1;
    check_golden("mlp-accumulate", &s);
    s = with_validation(trial_cnn(8, 4));
    s.config.precision = PRECISION_BF16;
    check_golden("cnn-bf16", &s);
    s.config.precision = PRECISION_FP16;
    check_golden("cnn-fp16", &s);
}
