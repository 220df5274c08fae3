/* cmd_doctor.c - `snug doctor`: why memory ran out, from what was left behind: an error text, a
 * log, a memory summary, nvidia-smi's output, a snapshot; and what changed between two snapshots.
 */
#include "cli/answer.h"
#include "cli/commands.h"

#include "doctor/diff.h"
#include "doctor/doctor.h"
#include "doctor/report.h"
#include "doctor/snapshot_page.h"

#include "base/env.h"

#include <string.h>

static enum status read_capacity(const struct args *a, int64_t *out, struct err *e)
{
    const struct option_value *v = &a->option[OPTION_CAPACITY];
    *out = 0;
    if (!v->given || (str_to_bytes(v->text, out) && *out > 0))
        return ST_OK;
    (void)err_set(e, ST_USAGE, "--capacity \"%s\" is no size", v->text);
    err_hint(e, "give bytes, or a number with a unit: 24GiB");
    return ST_USAGE;
}

struct page_order {
    const char *path, *title;
    bool written;
};

static enum status
write_page(void *ctx, const struct study *x, const json_t *document, struct err *e)
{
    struct page_order *o = ctx;
    const char *slash = strrchr(o->title, '/');
    struct str page;
    str_init(&page);
    snapshot_page(x, document, slash ? slash + 1 : o->title, &page);
    enum status st = file_write(o->path, page.data, page.n, e);
    str_release(&page);
    o->written = st == ST_OK;
    return st;
}

static enum status diagnose(const struct args *a, json_t **out, struct err *e)
{
    const struct option_value *html = &a->option[OPTION_HTML];
    struct page_order order = {.path = html->text, .title = a->argument[0]};
    struct doctor_options o = {.ctx = &order};
    if (a->n_arguments != 1)
        return err_set(e, ST_USAGE, "doctor wants one FILE; two only with --diff");
    TRY(read_capacity(a, &o.capacity_bytes, e));
    if (html->given)
        o.on_study = write_page;
    TRY(doctor_diagnose(a->argument[0], &o, out, e));
    if (html->given && !order.written) {
        json_decref(*out);
        *out = NULL;
        return err_set(
            e, ST_UNSUPPORTED, "--html is for snapshots, and \"%s\" is none", a->argument[0]);
    }
    if (html->given)
        json_put_str(*out, "html", html->text);
    return ST_OK;
}

static enum status compare(const struct args *a, json_t **out, struct err *e)
{
    if (a->n_arguments != 2)
        return err_set(e, ST_USAGE, "--diff wants two snapshots: snug doctor --diff A B");
    if (a->option[OPTION_HTML].given || a->option[OPTION_CAPACITY].given)
        return err_set(e, ST_USAGE, "--diff takes neither --html nor --capacity");
    return diff_files(a->argument[0], a->argument[1], out, e);
}

int cmd_doctor(const struct args *a)
{
    struct err e = {0};
    json_t *d = NULL;
    int rc = 0;
    bool two = a->option[OPTION_DIFF].given;
    enum status st = two ? compare(a, &d, &e) : diagnose(a, &d, &e);
    if (st == ST_OK && !a->json) {
        struct str out;
        str_init(&out);
        if (two)
            diff_text(d, &out);
        else
            report_text(d, &out);
        rc = answer_text(out.data);
        str_release(&out);
        json_decref(d);
        d = NULL;
    }
    int end = answer_end(a->json, st, &e, d);
    return end ? end : rc;
}
