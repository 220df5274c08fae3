/* tensorboard_test.c - event files, read back by their format. */
#include "record/tensorboard.h"

#include "base/env.h"
#include "base/mem.h"
#include "test.h"

#include <math.h>
#include <string.h>

TEST(crc32c_of_the_published_vectors, "CRC-32C as RFC 3720 B.4 and the usual check value have it")
{
    unsigned char b[32];
    CHECK_EQ(crc32c("123456789", 9), 0xe3069283);
    CHECK_EQ(crc32c("", 0), 0);
    memset(b, 0, sizeof b);
    CHECK_EQ(crc32c(b, sizeof b), 0x8a9136aa);
    memset(b, 0xff, sizeof b);
    CHECK_EQ(crc32c(b, sizeof b), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)i;
    CHECK_EQ(crc32c(b, sizeof b), 0x46dd794e);
}

/* The next record, whose checks must hold. */
static const unsigned char *record(const char **at, size_t *n)
{
    const unsigned char *p = (const unsigned char *)*at;
    uint32_t sum, tail;
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | p[i];
    memcpy(&sum, p + 8, 4);
    CHECK_EQ(sum, crc32c_masked(p, 8));
    memcpy(&tail, p + 12 + length, 4);
    CHECK_EQ(tail, crc32c_masked(p + 12, length));
    *at += 16 + length;
    *n = length;
    return p + 12;
}

TEST(
    event_file_has_version_and_scalars,
    "an event file starts with its version; NaN and infinities are left out")
{
    struct err e = {0};
    struct tensorboard *t;
    char *data;
    size_t size, n;
    char path[1400];
    CHECK_OK(tensorboard_open(&t, test_dir(), &e), &e);
    (void)snprintf(path, sizeof path, "%s", tensorboard_path(t));
    CHECK(strstr(path, "/events.out.tfevents.") != NULL);
    tensorboard_scalar(t, "train_loss", 300, 0.5);
    tensorboard_scalar(t, "train_loss", 301, (double)NAN);
    tensorboard_scalar(t, "train_loss", 302, (double)INFINITY);
    tensorboard_scalar(t, "train_loss", 303, 1e300); /* infinite as a float */
    CHECK_OK(tensorboard_close(t, &e), &e);
    CHECK_OK(file_read(path, 1 << 20, &data, &size, &e), &e);
    const char *at = data;
    const unsigned char *r = record(&at, &n);
    static const unsigned char version[] = "\x1a\x0d"
                                           "brain.Event:2";
    CHECK_EQ(n, 9 + sizeof version - 1);
    CHECK_EQ(r[0], 1 << 3 | 1);
    CHECK(memcmp(r + 9, version, sizeof version - 1) == 0);
    r = record(&at, &n);
    static const unsigned char scalar[] = "\x10\xac\x02"
                                          "\x2a\x13"
                                          "\x0a\x11"
                                          "\x0a\x0a"
                                          "train_loss"
                                          "\x15\x00\x00\x00\x3f";
    CHECK_EQ(n, 9 + sizeof scalar - 1);
    CHECK(memcmp(r + 9, scalar, sizeof scalar - 1) == 0);
    CHECK_EQ(at - data, size);
    mem_free(data);
}

TEST(unwritable_folder_is_said, "a folder that cannot be made is an error, not a crash")
{
    struct err e = {0};
    struct tensorboard *t;
    CHECK(tensorboard_open(&t, "/proc/nowhere", &e) != ST_OK);
}
