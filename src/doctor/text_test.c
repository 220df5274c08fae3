/* text_test.c - texts as facts: messages of every wording, tables, prefixes, escapes. */
#include "doctor/verdict.h"

#include "test.h"

#include <string.h>

static struct verdict judge(const char *text, struct evidence *v)
{
    struct verdict out;
    struct text_reader *r = text_reader_new();
    text_reader_feed(r, text, strlen(text));
    evidence_from_text(text_reader_end(r), SIZE_MAX, v);
    (void)verdict_of(v, &out);
    text_reader_free(r);
    return out;
}

TEST(old_message, "T4: the text of 1.4 to 2.0 as numbers")
{
    struct evidence v;
    struct verdict d = judge(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.65 GiB (GPU 1; 7.79 GiB total "
        "capacity; 3.53 GiB already allocated; 1.40 GiB free; 5.28 GiB reserved in total by "
        "PyTorch)\n",
        &v);
    CHECK(v.has_message && v.device == 1 && v.era == ERA_RESERVED);
    CHECK_EQ(v.total.bytes, 8364448809);
    CHECK(d.kind == OOM_FRAGMENTATION);
}
