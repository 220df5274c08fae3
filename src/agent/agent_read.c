/* agent_read.c - answers to questions about a run: its log, what it recorded. */
#define _GNU_SOURCE
#include "agent/agent_int.h"

#include "agent/output.h"
#include "record/outputs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG_BYTES_MAX = 1 << 20 };

/* {"text", "offset" (behind it), "size"}. */
static enum status log_part(const char *dir, const struct question *q, json_t **out, struct err *e)
{
    char path[1200];
    struct stat st;
    struct str text;
    int64_t most = q->bytes > 0 && q->bytes < LOG_BYTES_MAX ? q->bytes : LOG_BYTES_MAX;
    int fd = open(
        run_folder_path(dir, "output.log", path, sizeof path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_set(e, ST_NOT_FOUND, "this worker has no log of the run");
    int64_t size = fstat(fd, &st) == 0 ? (int64_t)st.st_size : 0;
    int64_t from = q->offset >= 0 ? q->offset : size + q->offset;
    from = from < 0 ? 0 : from > size ? size : from;
    char *bytes = mem_try_alloc((size_t)most);
    ssize_t n = bytes ? pread(fd, bytes, (size_t)most, (off_t)from) : -1;
    (void)close(fd);
    if (n < 0) {
        mem_free(bytes);
        return err_set(e, ST_IO, "could not read the log of the run");
    }
    str_init(&text);
    size_t taken = run_output_utf8(&text, bytes, (size_t)n, from + n < size);
    *out = json_object();
    json_put_str(*out, "text", text.data);
    json_put_i64(*out, "offset", from + (int64_t)taken);
    json_put_i64(*out, "size", size);
    str_release(&text);
    mem_free(bytes);
    return ST_OK;
}

static enum status answer_of(const char *dir, const struct question *q, json_t **out, struct err *e)
{
    const char *slice = *q->slice ? q->slice : NULL;
    if (str_eq(q->what, "log"))
        return log_part(dir, q, out, e);
    if (str_eq(q->what, "outputs"))
        return outputs_list(dir, out, e);
    if (str_eq(q->what, "output"))
        return outputs_read(dir, q->node, q->port, slice, q->max_elements, out, e);
    if (str_eq(q->what, "stats"))
        return outputs_stats(dir, q->node, q->port, out, e);
    if (str_eq(q->what, "index"))
        return outputs_index(dir, q->node, q->port, out, e);
    if (str_eq(q->what, "drop")) {
        outputs_drop(dir);
        *out = json_object();
        return ST_OK;
    }
    return err_set(e, ST_UNSUPPORTED, "this worker cannot answer \"%.40s\"", q->what);
}

json_t *agent_answer(const struct agent *a, const struct order *o)
{
    struct question q = {0};
    struct err e;
    char dir[1000];
    json_t *body = NULL;
    struct answer answer = {.request = o->request, .status = 200};
    enum status st = ST_OK;
    if (!run_id_is_valid(o->run_id))
        st = err_set(&e, ST_INVALID, "\"%.40s\" is no run", o->run_id);
    (void)snprintf(dir, sizeof dir, "%s/%s", a->runs_dir, o->run_id);
    if (st == ST_OK)
        st = wire_read(&wire_question, o->body, &q, &e);
    if (st == ST_OK)
        st = answer_of(dir, &q, &body, &e);
    if (st != ST_OK) {
        answer.status = status_http(st);
        body = json_object();
        json_put_str(body, "detail", e.text);
    }
    answer.body = body;
    json_t *doc = wire_write(&wire_answer, &answer);
    json_decref(body);
    return doc;
}
