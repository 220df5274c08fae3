/* alloc_conf_fuzz.c - any bytes as an allocator configuration: an error, or one that allocates. */
#include "base/mem.h"
#include "mem/pool/pool.h"
#include "mem/virtual.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct mem_pool_conf *c)
{
    struct mem_virtual *device =
        mem_virtual_new(&(struct mem_virtual_options){.capacity_bytes = (int64_t)1 << 36});
    struct mem_pool *p =
        mem_pool_open(mem_virtual_source(device), &(struct mem_pool_options){.conf = c});
    for (int i = 0; i < 40; i++) {
        struct mem_block *b;
        struct err e = {0};
        int64_t bytes = 1 + ((int64_t)0x9E3779B1 * (i + 1) & (((int64_t)2 << i) - 1));
        if (mem_pool_alloc(p, bytes, (struct mem_tag){0}, &b, &e) == ST_OK && i % 3)
            mem_pool_give(p, b);
        else
            ASSERT(i % 3 == 0 || e.status == ST_OOM);
        mem_pool_check(p);
    }
    mem_pool_free(p);
    ASSERT(mem_virtual_source(device)->held_bytes == 0);
    mem_virtual_free(device);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mem_pool_conf c;
    struct err e = {0};
    struct str warnings;
    char *text = mem_alloc(size + 1);
    if (size)
        memcpy(text, data, size);
    str_init(&warnings);
    mem_pool_conf_init(&c);
    if (mem_pool_conf_parse(&c, text, &warnings, &e) == ST_OK)
        use(&c);
    else
        ASSERT(e.text[0] != 0);
    str_release(&warnings);
    mem_free(text);
    return 0;
}
