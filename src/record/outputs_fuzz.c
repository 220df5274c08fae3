/* outputs_fuzz.c - recorded outputs of anybody's making: input is a slice, a line feed, an index.
 */
#include "record/outputs.h"

#include "base/env.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder(void)
{
    static char dir[64];
    struct err e;
    char path[128], zeros[96] = "";
    if (dir[0])
        return dir;
    (void)snprintf(dir, sizeof dir, "/tmp/snug-outputs-fuzz-%ld", (long)getpid());
    (void)snprintf(path, sizeof path, "%s/outputs", dir);
    ASSERT(dir_make(path, &e) == ST_OK);
    (void)snprintf(path, sizeof path, "%s/outputs/0.bin", dir);
    ASSERT(file_write(path, zeros, sizeof zeros, &e) == ST_OK);
    return dir;
}

static void ask_all(const char *dir, const char *node, const char *port, const char *slice)
{
    struct err e;
    json_t *d = NULL;
    if (outputs_read(dir, node, port, slice, 64, &d, &e) == ST_OK) {
        ASSERT(json_get_str(d, "type", NULL));
        json_decref(d);
    }
    if (outputs_stats(dir, node, port, &d, &e) == ST_OK)
        json_decref(d);
    if (outputs_index(dir, node, "__steps_index", &d, &e) == ST_OK)
        json_decref(d);
    if (outputs_index(dir, node, "__grad_index", &d, &e) == ST_OK)
        json_decref(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\n', size);
    const char *dir = folder();
    char slice[256] = "", path[128];
    struct err e;
    json_t *list, *row;
    size_t i, n = end ? (size_t)(end - data) : 0;
    if (!end || n >= sizeof slice)
        return 0;
    memcpy(slice, data, n);
    (void)snprintf(path, sizeof path, "%s/outputs/index.jsonl", dir);
    FILE *out = fopen(path, "w");
    ASSERT(out && fwrite(end + 1, 1, size - n - 1, out) == size - n - 1 && fclose(out) == 0);
    if (outputs_list(dir, &list, &e) != ST_OK)
        return 0;
    json_array_foreach(list, i, row) if (i < 8)
        ask_all(dir, json_get_str(row, "node_id", ""), json_get_str(row, "port", ""), slice);
    json_decref(list);
    return 0;
}
