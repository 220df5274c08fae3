/* ptfile_write.c - writes a tree as a .pt file: whole, and straight from the caller's memory. */
#include "base/env.h"
#include "nn/pickle.h"
#include "nn/ptfile.h"

#include <errno.h>
#include <string.h>
#include <zip.h>

/* Storages in the order the pickle meets them; s->number is valid where the list agrees. */
struct storage_list {
    VEC(struct pt_storage *) all;
};

static int64_t storage_key(void *ctx, struct pt_storage *s)
{
    struct storage_list *list = ctx;
    if (s->number >= list->all.n || list->all.data[s->number] != s) {
        s->number = list->all.n;
        vec_push(&list->all, s);
    }
    return (int64_t)s->number;
}

/* What libzip writes goes to the temporary file of a file_whole: it renames, we do not let libzip
 * do that, because it neither syncs nor cleans up after a kill. */
struct sink {
    FILE *out;
    zip_error_t error;
};

static zip_int64_t sink_fail(struct sink *s, int code)
{
    zip_error_set(&s->error, code, errno);
    return -1;
}

static zip_int64_t sink_seek(struct sink *s, void *data, zip_uint64_t n)
{
    zip_source_args_seek_t *args = ZIP_SOURCE_GET_ARGS(zip_source_args_seek_t, data, n, &s->error);
    if (!args)
        return -1;
    return fseeko(s->out, args->offset, args->whence) == 0 ? 0 : sink_fail(s, ZIP_ER_SEEK);
}

static zip_int64_t sink_call(void *ctx, void *data, zip_uint64_t n, zip_source_cmd_t command)
{
    struct sink *s = ctx;
    if (command == ZIP_SOURCE_SUPPORTS)
        return ZIP_SOURCE_SUPPORTS_WRITABLE;
    if (command == ZIP_SOURCE_STAT) {
        errno = ENOENT; /* a new file: libzip never reads it */
        return sink_fail(s, ZIP_ER_READ);
    }
    if (command == ZIP_SOURCE_ERROR)
        return zip_error_to_data(&s->error, data, n);
    if (command == ZIP_SOURCE_WRITE) {
        errno = 0;
        return fwrite(data, 1, n, s->out) == n ? (zip_int64_t)n : sink_fail(s, ZIP_ER_WRITE);
    }
    if (command == ZIP_SOURCE_SEEK_WRITE)
        return sink_seek(s, data, n);
    if (command == ZIP_SOURCE_TELL_WRITE)
        return ftello(s->out);
    if (command == ZIP_SOURCE_COMMIT_WRITE)
        return fflush(s->out) == 0 ? 0 : sink_fail(s, ZIP_ER_WRITE);
    if (command == ZIP_SOURCE_BEGIN_WRITE || command == ZIP_SOURCE_ROLLBACK_WRITE ||
        command == ZIP_SOURCE_REMOVE || command == ZIP_SOURCE_FREE)
        return 0;
    errno = 0;
    return sink_fail(s, ZIP_ER_OPNOTSUPP);
}

static enum status zip_fail(zip_error_t *z, const char *path, struct err *e)
{
    errno = zip_error_code_system(z);
    if (errno != 0 && zip_error_system_type(z) == ZIP_ET_SYS)
        return err_errno(e, "could not write \"%s\"", path);
    return err_set(e, ST_IO, "could not write \"%s\": %s", path, zip_error_strerror(z));
}

/* A storage whose bytes are made when libzip comes to read them. */
struct made {
    const struct pt_storage *storage;
    const char *data;
    size_t at;
    zip_error_t error;
};

static zip_int64_t made_read(struct made *m, void *data, zip_uint64_t n)
{
    size_t left = m->storage->size_bytes - m->at, some = n < left ? (size_t)n : left;
    memcpy(data, m->data + m->at, some);
    m->at += some;
    return (zip_int64_t)some;
}

static zip_int64_t made_stat(const struct made *m, void *data)
{
    zip_stat_t *st = data;
    zip_stat_init(st);
    st->valid = ZIP_STAT_SIZE;
    st->size = m->storage->size_bytes;
    return sizeof *st;
}

static zip_int64_t made_call(void *ctx, void *data, zip_uint64_t n, zip_source_cmd_t command)
{
    struct made *m = ctx;
    if (command == ZIP_SOURCE_SUPPORTS)
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_FREE, -1);
    if (command == ZIP_SOURCE_OPEN) {
        m->data = m->storage->make(m->storage->id, m->storage->ctx);
        m->at = 0;
        if (m->data)
            return 0;
        zip_error_set(&m->error, ZIP_ER_MEMORY, 0);
        return -1;
    }
    if (command == ZIP_SOURCE_READ)
        return made_read(m, data, n);
    if (command == ZIP_SOURCE_STAT)
        return made_stat(m, data);
    if (command == ZIP_SOURCE_ERROR)
        return zip_error_to_data(&m->error, data, n);
    if (command == ZIP_SOURCE_FREE) {
        zip_error_fini(&m->error);
        mem_free(m);
    }
    return 0;
}

static zip_source_t *source_of(zip_t *zip, const struct pt_storage *s)
{
    if (!s->make || s->data)
        return zip_source_buffer(zip, s->size_bytes > 0 ? s->data : "", s->size_bytes, 0);
    struct made *m = mem_alloc(sizeof *m);
    m->storage = s;
    zip_error_init(&m->error);
    return zip_source_function(zip, made_call, m);
}

/* Adds an entry over memory that stays until the archive is closed, or that is made then. */
static enum status
add_entry(zip_t *zip, const char *name, const struct pt_storage *s, const char *path, struct err *e)
{
    zip_source_t *source = source_of(zip, s);
    zip_int64_t i = source ? zip_file_add(zip, name, source, ZIP_FL_ENC_UTF_8) : -1;
    if (i < 0) {
        zip_source_free(source);
        return zip_fail(zip_get_error(zip), path, e);
    }
    /* Stored, as PyTorch demands; 1 January 1980, so that equal trees give equal bytes. */
    if (zip_set_file_compression(zip, (zip_uint64_t)i, ZIP_CM_STORE, 0) != 0 ||
        zip_file_set_dostime(zip, (zip_uint64_t)i, 0, 0x21, 0) != 0)
        return zip_fail(zip_get_error(zip), path, e);
    return ST_OK;
}

static enum status
add_bytes(zip_t *zip, const char *name, const void *data, size_t n, const char *path, struct err *e)
{
    struct pt_storage s = {.data = data, .size_bytes = n};
    return add_entry(zip, name, &s, path, e);
}

static enum status add_entries(
    zip_t *zip, const struct str *pickle, const struct storage_list *list, const char *path,
    struct err *e)
{
    TRY(add_bytes(zip, "archive/data.pkl", pickle->data, pickle->n, path, e));
    TRY(add_bytes(zip, "archive/byteorder", "little", 6, path, e));
    for (size_t i = 0; i < list->all.n; i++) {
        const struct pt_storage *s = list->all.data[i];
        char name[64];
        if (!s->data && !s->make && s->size_bytes > 0)
            return err_set(e, ST_INTERNAL, "a storage of \"%s\" is not in memory", path);
        (void)snprintf(name, sizeof name, "archive/data/%zu", i);
        TRY(add_entry(zip, name, s, path, e));
    }
    return add_bytes(zip, "archive/version", "3\n", 2, path, e);
}

/* Writes the archive to `out`; libzip has let go of everything when this returns. */
static enum status write_zip(
    FILE *out, const struct str *pickle, const struct storage_list *list, const char *path,
    struct err *e)
{
    struct sink sink = {.out = out};
    zip_error_t z;
    enum status st;
    zip_error_init(&z);
    zip_error_init(&sink.error);
    zip_source_t *source = zip_source_function_create(sink_call, &sink, &z);
    zip_t *zip = source ? zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &z) : NULL;
    if (!zip) {
        st = zip_fail(&z, path, e);
        zip_source_free(source);
        goto out;
    }
    st = add_entries(zip, pickle, list, path, e);
    if (st == ST_OK && zip_close(zip) == 0)
        goto out;
    if (st == ST_OK)
        st = zip_fail(zip_get_error(zip), path, e);
    zip_discard(zip);
out:
    zip_error_fini(&z);
    zip_error_fini(&sink.error);
    return st;
}

enum status ptfile_write(const char *path, const struct pt_value *root, struct err *e)
{
    struct storage_list list = {0};
    struct file_whole file = {0};
    struct str pickle;
    enum status st;
    str_init(&pickle);
    TRY_OUT(pickle_write(root, storage_key, &list, &pickle, e));
    TRY_OUT(file_whole_begin(&file, path, e));
    st = write_zip(file.out, &pickle, &list, path, e);
    if (st == ST_OK)
        st = file_whole_commit(&file, e);
    else
        file_whole_abort(&file);
out:
    str_release(&pickle);
    vec_release(&list.all);
    return st;
}
