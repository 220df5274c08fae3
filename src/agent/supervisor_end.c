/* supervisor_end.c - what became of a run: the run_end that its supervisor writes. */
#define _GNU_SOURCE /* sigabbrev_np */
#include "agent/supervisor_int.h"

#include "base/env.h"
#include "base/mem.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* What the work of a graph says about itself; NULL: it said nothing. */
static json_t *result_read(const char *dir)
{
    char path[1200];
    struct run_end checked;
    struct err e;
    json_t *doc = NULL;
    enum cause c;
    if (json_read_file(
            run_folder_path(dir, "result.json", path, sizeof path), 64 << 20, &doc, &e) != ST_OK)
        return NULL;
    if (wire_read(&wire_run_end, doc, &checked, &e) == ST_OK && cause_find(checked.cause, &c))
        return doc;
    json_decref(doc);
    return NULL;
}

/* The largest figure per card of the files that PyTorch's hook left, as run_end.peaks. */
static json_t *peaks_of(const struct run_folder *f)
{
    json_t *peaks = json_array();
    size_t cards = json_array_size(f->o.devices);
    int64_t most[64] = {0};
    bool any = false;
    struct dirent *entry;
    DIR *d = opendir(f->dir);
    while (d && (entry = readdir(d))) {
        char path[1400];
        struct err ignored;
        json_t *doc;
        if (!str_starts(entry->d_name, "peaks.") || !str_ends(entry->d_name, ".json") ||
            json_read_file(
                run_folder_path(f->dir, entry->d_name, path, sizeof path), 65536, &doc, &ignored) !=
                ST_OK)
            continue;
        for (size_t i = 0; i < json_array_size(doc) && i < cards && i < 64; i++) {
            int64_t bytes = json_integer_value(json_array_get(doc, i));
            most[i] = bytes > most[i] ? bytes : most[i];
            any = true;
        }
        json_decref(doc);
    }
    if (d)
        (void)closedir(d);
    for (size_t i = 0; any && i < cards && i < 64; i++) {
        json_t *row = json_object();
        json_put(row, "device", json_incref(json_array_get(f->o.devices, i)));
        json_put_i64(row, "bytes", most[i]);
        (void)json_array_append_new(peaks, row);
    }
    return peaks;
}

/* B6: whose budget it was. */
static void budget_text(const struct start_order *o, struct str *out)
{
    char size[32];
    str_printf(
        out, "it ran out of memory under its budget of %s per card, ",
        bytes_text(o->budget_bytes, size, sizeof size));
    if (strcmp(o->budget_source, "measured") == 0)
        str_printf(
            out, "which is the peak measured on run %.8s plus 20%%",
            *o->budget_run ? o->budget_run : "an earlier one");
    else if (strcmp(o->budget_source, "estimate") == 0)
        str_add(out, "which is the static estimate");
    else
        str_add(out, "which was given with the run");
    str_add(out, "; declare a larger target.memory_gib");
}

/* A PyTorch program said, through the hook, that its card had no memory left. */
static json_t *torch_oom(const struct supervisor *s)
{
    char path[1200], *said = NULL;
    size_t n;
    struct err ignored;
    struct str text;
    if (file_read(run_folder_path(s->f.dir, "oom", path, sizeof path), 8192, &said, &n, &ignored) !=
        ST_OK)
        return NULL;
    str_init(&text);
    if (s->f.o.budget_bytes > 0) {
        budget_text(&s->f.o, &text);
        str_add(&text, "\n");
    }
    str_add(&text, "Original error: ");
    (void)run_output_utf8(&text, said, n, false);
    json_t *end = run_folder_end(
        CAUSE_OUT_OF_MEMORY, text.data,
        "`snug doctor` reads the run's log and says what helps, cheapest first.", s->end.exit_code,
        s->end.signal);
    str_release(&text);
    mem_free(said);
    return end;
}

/* O2: the kernel's out-of-memory killer took it. A shell says 137 of a child that it took. */
static bool host_oom(const struct supervisor *s)
{
    bool killed = s->end.signal == SIGKILL || s->end.exit_code == 128 + SIGKILL;
    return killed && !s->killing && s->oom_before >= 0 && s->oom_after > s->oom_before;
}

/* The node that ran last, by the run's own events; NULL: none. mem_free. */
static char *running_node(const struct supervisor *s)
{
    struct journal_reader r;
    struct run_event ev;
    struct err ignored;
    json_t *doc;
    char *node = NULL;
    if (journal_read_open(&r, s->f.dir, &ignored) != ST_OK)
        return NULL;
    while (journal_next(&r, &doc, &ev, NULL)) {
        const char *id = json_get_str(ev.payload, "node_id", "");
        const char *status = json_get_str(ev.payload, "status", "");
        bool runs = str_eq(status, "running") || str_eq(status, "progress");
        if (ev.epoch == s->f.o.epoch && str_eq(ev.type, event_name(EVENT_NODE_STATUS)) &&
            (runs || str_eq(node, id))) {
            mem_free(node);
            node = runs ? mem_strdup(id) : NULL;
        }
        json_decref(doc);
    }
    journal_read_close(&r);
    return node;
}

static const char *type_of_node(const struct supervisor *s, const char *id)
{
    size_t i;
    json_t *node;
    json_array_foreach(json_object_get(s->f.o.graph, "nodes"), i, node)
    {
        if (str_eq(json_get_str(node, "id", NULL), id))
            return json_get_str(node, "type", "?");
    }
    return "?";
}

static json_t *host_oom_end(const struct supervisor *s)
{
    struct str text;
    char *node = running_node(s);
    const char *type = node ? type_of_node(s, node) : NULL;
    str_init(&text);
    str_add(&text, "NodeOOMError: ");
    if (node)
        str_printf(&text, "node %s (%s) on cpu: ", node, type);
    str_add(
        &text, "the host ran out of memory and the kernel ended the run (signal 9, oom_kill of its "
               "cgroup)\n"
               "What to try, cheapest first:\n"
               "  1. lower batch_size on the DataLoader\n"
               "  2. raise accumulate_steps and lower batch_size by the same factor\n"
               "  3. fewer loader workers, and less of the data set in memory\n"
               "  4. a smaller model, sequence or image\n"
               "Original error: killed by signal 9");
    json_t *end = run_folder_end(
        CAUSE_OUT_OF_MEMORY, text.data, "Give the run more host memory, or lower what it takes.",
        s->end.exit_code, s->end.signal);
    if (node) {
        json_put_str(json_object_get(end, "detail"), "node_id", node);
        json_put_str(json_object_get(end, "detail"), "node_type", type);
    }
    str_release(&text);
    mem_free(node);
    return end;
}

static json_t *signal_end(const struct supervisor *s)
{
    char text[128];
    const char *name = sigabbrev_np(s->end.signal);
    (void)snprintf(
        text, sizeof text, "a signal ended its process: SIG%s (%d)", name ? name : "?",
        s->end.signal);
    return run_folder_end(
        CAUSE_CRASHED, text, "The last lines of its log may say more: `snug runs logs`.", -1,
        s->end.signal);
}

static json_t *stopped_end(const struct supervisor *s)
{
    enum cause why = CAUSE_AGENT_STOPPED;
    char text[128];
    if (!run_folder_stop_read(s->f.dir, &why) && s->lapsed)
        why = CAUSE_AGENT_LOST; /* the disk was full */
    if (s->timed_out)
        why = CAUSE_TIMED_OUT;
    (void)snprintf(text, sizeof text, "it ran past its time limit of %g s", s->f.o.timeout_s);
    return run_folder_end(
        why, why == CAUSE_TIMED_OUT ? text : NULL, NULL, s->end.exit_code, s->end.signal);
}

static json_t *exit_end(const struct supervisor *s)
{
    char text[96];
    if (s->end.exit_code == 0)
        return run_folder_end(CAUSE_DONE, NULL, NULL, 0, 0);
    (void)snprintf(text, sizeof text, "the command ended with status %d", s->end.exit_code);
    return run_folder_end(
        CAUSE_EXIT_STATUS, text, "The last lines of its log may say why: `snug runs logs`.",
        s->end.exit_code, 0);
}

json_t *supervisor_end(const struct supervisor *s)
{
    bool command = strcmp(s->f.o.kind, "command") == 0;
    json_t *end = command ? NULL : result_read(s->f.dir);
    if (end) {
        json_put_i64(end, "exit_code", s->end.exit_code);
        json_put_i64(end, "signal", s->end.signal);
        return end;
    }
    if (s->asked > 0 || s->timed_out || s->lapsed)
        end = stopped_end(s);
    else if (host_oom(s))
        end = host_oom_end(s);
    else if (s->end.signal)
        end = signal_end(s);
    else if (s->end.exit_code != 0 && command && (end = torch_oom(s)))
        ;
    else if (!command)
        end = run_folder_end(
            CAUSE_CRASHED, "its process ended without a result", NULL, s->end.exit_code, 0);
    else
        end = exit_end(s);
    if (command)
        json_put(end, "peaks", peaks_of(&s->f));
    return end;
}
