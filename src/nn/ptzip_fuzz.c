/* ptzip_fuzz.c - any bytes as a .pt file: opened, and every tensor of up to a MiB read. */
#include "nn/ptfile_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensor(struct ptfile *f, const struct pt_tensor *t)
{
    struct err e = {0};
    int64_t n = pt_tensor_elements(t);
    if (n > 1 << 16)
        return;
    double *dst = mem_alloc((size_t)n * sizeof *dst);
    (void)!ptfile_read(f, t, DT_F64, dst, (size_t)n * sizeof *dst, &e);
    (void)!ptfile_read(f, t, t->type, dst, (size_t)n * (size_t)dtype_size(t->type), &e);
    mem_free(dst);
}

static void read_all(struct ptfile *f, const struct pt_value *v, int *left)
{
    if (v->kind == PT_TENSOR && (*left)-- > 0)
        read_tensor(f, v->tensor);
    for (size_t i = 0; (v->kind == PT_LIST || v->kind == PT_TUPLE) && i<v->seq.n && * left> 0; i++)
        read_all(f, v->seq.data[i], left);
    for (size_t i = 0; v->kind == PT_DICT && i<v->dict.n && * left> 0; i++)
        read_all(f, v->dict.data[i].value, left);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct ptfile *f = NULL;
    int left = 64;
    zip_source_t *source = zip_source_buffer_create(data, size, 0, NULL);
    zip_t *zip = zip_open_from_source(source, ZIP_RDONLY, NULL);
    if (!zip) {
        zip_source_free(source);
        return 0;
    }
    if (ptfile_open_zip(zip, "fuzz.pt", size, &f, &e) == ST_OK)
        read_all(f, ptfile_root(f), &left);
    ptfile_close(f);
    return 0;
}
