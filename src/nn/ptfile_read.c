/* ptfile_read.c - opening a .pt file and reading its tensors straight into the caller's memory. */
#include "nn/pickle.h"
#include "nn/ptfile_int.h"

#include <errno.h>
#include <string.h>

enum { WINDOW_BYTES = 256 << 10 };

struct ptfile {
    zip_t *zip;
    struct arena arena;
    const char *path;
    char prefix[256];             /* "archive/" */
    uint64_t size_bytes;          /* of the zip file */
    struct pt_storage **storages; /* by entry of the zip file */
    struct pt_value *root;
};

struct pt_value *ptfile_root(const struct ptfile *f)
{
    return f->root;
}

const char *ptfile_path(const struct ptfile *f)
{
    return f->path;
}

void ptfile_close(struct ptfile *f)
{
    if (!f)
        return;
    zip_discard(f->zip); /* nothing is ever changed through it */
    arena_release(&f->arena);
    mem_free(f);
}

/* What libzip says about an entry, as our error. */
static enum status
entry_fail(const struct ptfile *f, zip_error_t *z, const char *entry, struct err *e)
{
    bool io = zip_error_code_zip(z) == ZIP_ER_READ && zip_error_code_system(z) != 0;
    err_set(
        e, io ? ST_IO : ST_CORRUPT, "could not read \"%s\" of \"%s\": %s", entry, f->path,
        zip_error_strerror(z));
    if (!io)
        err_hint(e, "The file is damaged or cut short; take another copy of it.");
    return io ? ST_IO : ST_CORRUPT;
}

/* Where an entry lies and how long it is, checked against the size of the file. */
static enum status entry_stat(struct ptfile *f, int64_t entry, zip_stat_t *s, struct err *e)
{
    const zip_uint64_t need = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(f->zip, (zip_uint64_t)entry, 0, s) != 0 || (s->valid & need) != need)
        return err_set(e, ST_CORRUPT, "\"%s\" is damaged: an entry without a size", f->path);
    if (s->comp_size > f->size_bytes || (s->comp_method == ZIP_CM_STORE && s->size != s->comp_size))
        return err_set(
            e, ST_CORRUPT, "\"%s\" is damaged: entry \"%.100s\" is longer than the file", f->path,
            s->name ? s->name : "");
    return ST_OK;
}

/* The entry `prefix + name`, or -1. */
static int64_t entry_find(const struct ptfile *f, const char *name)
{
    char full[512];
    int n = snprintf(full, sizeof full, "%s%s", f->prefix, name);
    if (n < 0 || (size_t)n >= sizeof full)
        return -1;
    return zip_name_locate(f->zip, full, 0);
}

/* The whole of a small entry, checksum included, and a NUL; freed by mem_free. */
static enum status entry_read(
    struct ptfile *f, int64_t entry, size_t limit_bytes, char **out, size_t *n, struct err *e)
{
    zip_stat_t s;
    enum status st = ST_OK;
    TRY(entry_stat(f, entry, &s, e));
    if (s.size > limit_bytes)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": entry \"%.100s\" has %llu bytes, more than %zu", f->path,
            s.name, (unsigned long long)s.size, limit_bytes);
    zip_file_t *z = zip_fopen_index(f->zip, (zip_uint64_t)entry, 0);
    if (!z)
        return entry_fail(f, zip_get_error(f->zip), s.name, e);
    char *buf = mem_try_alloc((size_t)s.size + 1), past;
    if (!buf) {
        st = err_set(e, ST_OOM, "no host memory for \"%.100s\" of \"%s\"", s.name, f->path);
        goto out;
    }
    /* Reading past the end is what makes libzip compare the checksum. */
    if (zip_fread(z, buf, s.size) != (zip_int64_t)s.size || zip_fread(z, &past, 1) != 0) {
        st = entry_fail(f, zip_file_get_error(z), s.name, e);
        goto out;
    }
    buf[s.size] = 0;
    *out = buf;
    *n = (size_t)s.size;
    buf = NULL;
out:
    mem_free(buf);
    (void)zip_fclose(z);
    return st;
}

/* pickle_source.find: storages are the entries <name>/data/<key>. */
static enum status
find_storage(void *ctx, const char *key, size_t size_bytes, struct pt_storage **out, struct err *e)
{
    struct ptfile *f = ctx;
    char name[300];
    zip_stat_t s;
    int n = snprintf(name, sizeof name, "data/%s", key);
    int64_t entry = n < 0 || (size_t)n >= sizeof name ? -1 : entry_find(f, name);
    if (entry < 0)
        return err_set(e, ST_CORRUPT, "storage \"%.100s\" is missing", key);
    TRY(entry_stat(f, entry, &s, e));
    if (s.size != size_bytes)
        return err_set(
            e, ST_CORRUPT, "storage \"%.100s\" has %llu bytes, not the %zu its tensors say", key,
            (unsigned long long)s.size, size_bytes);
    if (!f->storages[entry]) {
        f->storages[entry] = pt_storage(&f->arena, NULL, size_bytes);
        f->storages[entry]->key = arena_strdup(&f->arena, key);
        f->storages[entry]->entry = entry;
    }
    *out = f->storages[entry];
    return ST_OK;
}

/* The folder that all entries are in: that of data.pkl. */
static enum status find_prefix(struct ptfile *f, int64_t *pickle, struct err *e)
{
    int64_t n = zip_get_num_entries(f->zip, 0);
    for (int64_t i = 0; i < n; i++) {
        const char *name = zip_get_name(f->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name ? strchr(name, '/') : NULL;
        if (!slash || !str_eq(slash + 1, "data.pkl"))
            continue;
        size_t length = (size_t)(slash - name) + 1;
        if (length >= sizeof f->prefix)
            return err_set(e, ST_UNSUPPORTED, "\"%s\": names in it are too long", f->path);
        memcpy(f->prefix, name, length);
        f->prefix[length] = 0;
        *pickle = i;
        return ST_OK;
    }
    return err_set(
        e, ST_CORRUPT, "\"%s\" is a zip file but not PyTorch's: it has no data.pkl", f->path);
}

static enum status check_byteorder(struct ptfile *f, struct err *e)
{
    char *text;
    size_t n;
    int64_t entry = entry_find(f, "byteorder");
    if (entry < 0)
        return ST_OK; /* before PyTorch 2.1; little-endian in practice */
    TRY(entry_read(f, entry, 64, &text, &n, e));
    bool little = strncmp(text, "little", 6) == 0;
    mem_free(text);
    if (!little)
        return err_set(e, ST_UNSUPPORTED, "\"%s\" was written by a big-endian machine", f->path);
    return ST_OK;
}

static enum status read_tree(struct ptfile *f, struct err *e)
{
    int64_t entry = -1;
    char *pickle;
    size_t n;
    TRY(find_prefix(f, &entry, e));
    TRY(check_byteorder(f, e));
    if (entry_find(f, "constants.pkl") >= 0) {
        err_set(e, ST_UNSUPPORTED, "\"%s\" is a TorchScript program, not weights", f->path);
        err_hint(e, "Save the weights alone: torch.save(model.state_dict(), path).");
        return ST_UNSUPPORTED;
    }
    TRY(entry_read(f, entry, PICKLE_BYTES_MAX, &pickle, &n, e));
    f->storages = ARENA_ARRAY(&f->arena, struct pt_storage *, zip_get_num_entries(f->zip, 0));
    struct pickle_source source = {find_storage, f};
    enum status st = pickle_read(pickle, n, &f->arena, source, &f->root, e);
    mem_free(pickle);
    if (st != ST_OK)
        err_prefix(e, "\"%s\"", f->path);
    return st;
}

enum status ptfile_open_zip(
    zip_t *zip, const char *path, uint64_t size_bytes, struct ptfile **out, struct err *e)
{
    struct ptfile *f = mem_alloc(sizeof *f);
    arena_init(&f->arena);
    f->zip = zip;
    f->size_bytes = size_bytes;
    f->path = arena_strdup(&f->arena, path);
    enum status st = read_tree(f, e);
    if (st != ST_OK) {
        ptfile_close(f);
        return st;
    }
    *out = f;
    return ST_OK;
}

/* What a file that is no zip file may be instead. */
static enum status not_a_zip(const char *path, const unsigned char *head, size_t n, struct err *e)
{
    /* Protocol 2 and LONG1 of ten bytes: PyTorch's old magic number 0x1950a86a20f9469cfc6c. */
    static const unsigned char legacy[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c,
                                           0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    if (n >= sizeof legacy && memcmp(head, legacy, sizeof legacy) == 0) {
        err_set(e, ST_UNSUPPORTED, "\"%s\" is in PyTorch's old format (before 1.6)", path);
        err_hint(e, "Save it again with PyTorch: torch.save(torch.load(\"old.pt\"), \"new.pt\").");
        return ST_UNSUPPORTED;
    }
    return err_set(e, ST_CORRUPT, "\"%s\" is not a PyTorch file", path);
}

static enum status check_head(const char *path, uint64_t *size_bytes, struct err *e)
{
    unsigned char head[16];
    FILE *in = fopen(path, "rb");
    if (!in)
        return err_errno(e, "cannot open \"%s\"", path);
    errno = 0;
    size_t n = fread(head, 1, sizeof head, in);
    enum status st = ST_OK;
    if (ferror(in) || fseeko(in, 0, SEEK_END) != 0 || ftello(in) < 0)
        st = err_errno(e, "could not read \"%s\"", path);
    else if (n < 4 || memcmp(head, "PK\3\4", 4) != 0)
        st = not_a_zip(path, head, n, e);
    else
        *size_bytes = (uint64_t)ftello(in);
    (void)fclose(in);
    return st;
}

enum status ptfile_open(const char *path, struct ptfile **out, struct err *e)
{
    uint64_t size_bytes = 0;
    int code = 0;
    TRY(check_head(path, &size_bytes, e));
    zip_t *zip = zip_open(path, ZIP_RDONLY, &code);
    if (!zip) {
        zip_error_t z;
        zip_error_init_with_code(&z, code);
        err_set(e, ST_CORRUPT, "cannot read \"%s\": %s", path, zip_error_strerror(&z));
        err_hint(e, "The file is damaged or cut short; take another copy of it.");
        zip_error_fini(&z);
        return ST_CORRUPT;
    }
    return ptfile_open_zip(zip, path, size_bytes, out, e);
}

/* A storage read forwards: straight to its destination, or through a window of buffered bytes. */
struct window {
    struct ptfile *f;
    const struct pt_storage *s;
    zip_file_t *z; /* NULL for a storage in memory */
    uint64_t at;   /* position in the storage of the next byte from z */
    uint64_t begin;
    size_t n; /* bytes in buf, from `begin` on */
    _Alignas(16) char buf[WINDOW_BYTES];
};

static enum status window_fail(struct window *w, struct err *e)
{
    char entry[300];
    (void)snprintf(entry, sizeof entry, "data/%.200s", w->s->key);
    return entry_fail(w->f, zip_file_get_error(w->z), entry, e);
}

/* The next n bytes of the storage. */
static enum status window_read(struct window *w, void *dst, size_t n, struct err *e)
{
    if (!w->z) {
        memcpy(dst, (const char *)w->s->data + w->at, n);
        w->at += n;
        return ST_OK;
    }
    for (size_t done = 0; done < n;) {
        size_t part = n - done < (1u << 30) ? n - done : 1u << 30;
        zip_int64_t got = zip_fread(w->z, (char *)dst + done, part);
        if (got <= 0)
            return got < 0 ? window_fail(w, e)
                           : err_set(
                                 e, ST_CORRUPT, "\"%s\" is cut short in storage \"%.100s\"",
                                 w->f->path, w->s->key);
        done += (size_t)got;
        w->at += (uint64_t)got;
    }
    return ST_OK;
}

/* Moves forwards to a position; what is passed over is read where the entry is compressed. */
static enum status window_skip(struct window *w, uint64_t to, struct err *e)
{
    if (!w->z || to == w->at) {
        w->at = to;
        return ST_OK;
    }
    if (zip_fseek(w->z, (zip_int64_t)to, SEEK_SET) == 0) {
        w->at = to;
        return ST_OK;
    }
    while (w->at < to) {
        uint64_t part = to - w->at < WINDOW_BYTES ? to - w->at : WINDOW_BYTES;
        TRY(window_read(w, w->buf, (size_t)part, e));
    }
    return ST_OK;
}

/* The bytes [offset, offset + n) in the window; offsets never go back beyond its begin. */
static enum status
window_get(struct window *w, uint64_t offset, size_t n, const char **out, struct err *e)
{
    ASSERT(offset >= w->begin && n <= WINDOW_BYTES);
    if (offset + n > w->begin + w->n) {
        uint64_t left = w->s->size_bytes - offset;
        size_t fill = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
        /* Bytes at the end of the old window that the new one begins with. */
        size_t keep = offset < w->begin + w->n ? (size_t)(w->begin + w->n - offset) : 0;
        if (keep > 0)
            memmove(w->buf, w->buf + (offset - w->begin), keep);
        else
            TRY(window_skip(w, offset, e));
        w->begin = offset;
        w->n = 0;
        TRY(window_read(w, w->buf + keep, fill - keep, e));
        w->n = fill;
    }
    *out = w->buf + (offset - w->begin);
    return ST_OK;
}

static enum status
window_open(struct window *w, struct ptfile *f, const struct pt_storage *s, struct err *e)
{
    w->f = f;
    w->s = s;
    w->z = NULL;
    w->at = w->begin = 0;
    w->n = 0;
    if (s->data)
        return ST_OK;
    w->z = zip_fopen_index(f->zip, (zip_uint64_t)s->entry, 0);
    return w->z ? ST_OK : entry_fail(f, zip_get_error(f->zip), s->key, e);
}

static void window_close(struct window *w)
{
    if (w->z)
        (void)zip_fclose(w->z);
    w->z = NULL;
}

/* After the last byte: libzip compares the checksum when it is asked for more. */
static enum status window_end(struct window *w, struct pt_storage *s, struct err *e)
{
    char past;
    if (!w->z || w->at != s->size_bytes)
        return ST_OK;
    if (zip_fread(w->z, &past, 1) != 0)
        return window_fail(w, e);
    s->verified = true;
    return ST_OK;
}

/* Reads a storage through once, so that later reads of parts of it can be trusted. */
static enum status
storage_verify(struct window *w, struct ptfile *f, struct pt_storage *s, struct err *e)
{
    if (s->data || s->verified)
        return ST_OK;
    TRY(window_open(w, f, s, e));
    enum status st = ST_OK;
    while (st == ST_OK && w->at < s->size_bytes) {
        uint64_t left = s->size_bytes - w->at;
        st = window_read(w, w->buf, left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES, e);
    }
    if (st == ST_OK)
        st = window_end(w, s, e);
    window_close(w);
    return st;
}

static enum status read_contiguous(
    struct window *w, const struct pt_tensor *t, enum dtype type, char *dst, int64_t n,
    struct err *e)
{
    size_t size = (size_t)dtype_size(t->type), out = (size_t)dtype_size(type);
    TRY(window_skip(w, (uint64_t)t->offset * size, e));
    if (type == t->type)
        return window_read(w, dst, (size_t)n * size, e);
    for (int64_t i = 0; i < n;) {
        int64_t part =
            n - i < (int64_t)(WINDOW_BYTES / size) ? n - i : (int64_t)(WINDOW_BYTES / size);
        TRY(window_read(w, w->buf, (size_t)part * size, e));
        dtype_convert(type, dst + (size_t)i * out, t->type, w->buf, (size_t)part);
        i += part;
    }
    return ST_OK;
}

/* A dimension with the step it makes in the storage and in the contiguous destination. */
struct walk_dim {
    int64_t size, src, dst;
};

/* Dimensions from the largest step to the smallest; those of size 1 are left out. */
static int walk_order(const struct pt_tensor *t, struct walk_dim dims[PT_RANK_MAX])
{
    int n = 0;
    int64_t dst = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        struct walk_dim x = {t->shape[d], t->strides[d], dst};
        dst *= t->shape[d];
        if (x.size == 1)
            continue;
        int at = n++;
        for (; at > 0 && dims[at - 1].src < x.src; at--)
            dims[at] = dims[at - 1];
        dims[at] = x;
    }
    return n;
}

/* Whether that order never goes back in the storage. */
static bool walk_forwards(const struct walk_dim *dims, int n)
{
    int64_t reach = 0;
    for (int d = n - 1; d >= 0; d--) {
        if (dims[d].src < reach)
            return false;
        reach += (dims[d].size - 1) * dims[d].src;
    }
    return true;
}

/* Reads in the order of the storage, so that one pass with a small window is enough. */
static enum status
read_strided(struct window *w, const struct pt_tensor *t, enum dtype type, char *dst, struct err *e)
{
    struct walk_dim dims[PT_RANK_MAX];
    int64_t at[PT_RANK_MAX] = {0}, src = t->offset, to = 0;
    int n = walk_order(t, dims);
    size_t size = (size_t)dtype_size(t->type), out = (size_t)dtype_size(type);
    size_t span = (size_t)(pt_tensor_last(t) - t->offset + 1) * size;
    const char *p;
    w->begin = (uint64_t)t->offset * size;
    if (!walk_forwards(dims, n)) {
        if (span > WINDOW_BYTES) {
            err_set(e, ST_UNSUPPORTED, "a large tensor overlaps itself");
            err_hint(e, "Save tensor.contiguous() instead.");
            return ST_UNSUPPORTED;
        }
        TRY(window_get(w, w->begin, span, &p, e));
    }
    for (;;) {
        TRY(window_get(w, (uint64_t)src * size, size, &p, e));
        _Alignas(8) char one[8];
        memcpy(one, p, size);
        dtype_convert(type, dst + (size_t)to * out, t->type, one, 1);
        int d = n - 1;
        for (; d >= 0; d--) {
            src += dims[d].src;
            to += dims[d].dst;
            if (++at[d] < dims[d].size)
                break;
            src -= dims[d].size * dims[d].src;
            to -= dims[d].size * dims[d].dst;
            at[d] = 0;
        }
        if (d < 0)
            return ST_OK;
    }
}

/* One pass over the storage; partial reads are preceded by a pass that compares the checksum. */
static enum status read_into(
    struct ptfile *f, const struct pt_tensor *t, enum dtype type, char *dst, int64_t n,
    struct err *e)
{
    struct window *w = mem_alloc(sizeof *w);
    struct pt_storage *s = t->storage;
    bool whole =
        pt_tensor_contiguous(t) && (size_t)n * (size_t)dtype_size(t->type) == s->size_bytes;
    enum status st = ST_OK;
    if (!whole)
        TRY_OUT(storage_verify(w, f, s, e));
    TRY_OUT(window_open(w, f, s, e));
    if (pt_tensor_contiguous(t))
        TRY_OUT(read_contiguous(w, t, type, dst, n, e));
    else
        TRY_OUT(read_strided(w, t, type, dst, e));
    if (whole)
        TRY_OUT(window_end(w, s, e));
out:
    window_close(w);
    mem_free(w);
    return st;
}

enum status ptfile_read(
    struct ptfile *f, const struct pt_tensor *t, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e)
{
    int64_t n = pt_tensor_elements(t);
    ASSERT(n >= 0 && dst_bytes == (size_t)n * (size_t)dtype_size(type));
    if (!dtype_converts(type, t->type))
        return err_set(
            e, ST_UNSUPPORTED, "a tensor of %s cannot be read as %s", dtype_name(t->type),
            dtype_name(type));
    return n == 0 ? ST_OK : read_into(f, t, type, dst, n, e);
}

enum status
ptfile_read_number(struct ptfile *f, const struct pt_value *v, double *out, struct err *e)
{
    if (pt_to_float(v, out))
        return ST_OK;
    if (!v || v->kind != PT_TENSOR || pt_tensor_elements(v->tensor) != 1)
        return err_set(
            e, ST_CORRUPT, "\"%s\": %s where a number should be", f->path,
            v ? pt_kind_name(v->kind) : "nothing");
    return ptfile_read(f, v->tensor, DT_F64, out, sizeof *out, e);
}

enum status ptfile_read_storage(struct ptfile *f, struct pt_storage *s, void *dst, struct err *e)
{
    struct window *w = mem_alloc(sizeof *w);
    enum status st = ST_OK;
    TRY_OUT(window_open(w, f, s, e));
    TRY_OUT(window_read(w, dst, s->size_bytes, e));
    TRY_OUT(window_end(w, s, e));
out:
    window_close(w);
    mem_free(w);
    return st;
}
