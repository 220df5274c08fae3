/* supervisor_work.c - the work of a run as a process: a graph in a fork of the supervisor, a
 * command executed with an environment of its own. */
#define _GNU_SOURCE
#include "agent/supervisor_int.h"

#include "base/env.h"
#include "base/mem.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const unsigned char torch_hook[];
extern const unsigned torch_hook_bytes;
extern char **environ;

/* Where the host's memory ends, the kernel takes runs before servers and agents. */
enum { OOM_SCORE = 300 };

/* Variables that may hold what opens the server's door. */
static bool is_secret(const char *variable)
{
    static const char *const words[] = {"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "JOIN"};
    char name[128];
    size_t n = strcspn(variable, "=");
    if (!str_starts(variable, "SNUG_") || n >= sizeof name)
        return false;
    memcpy(name, variable, n);
    name[n] = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

void supervisor_scrub_environment(void)
{
    for (char **v = environ; v && *v;) {
        char name[128];
        size_t n = strcspn(*v, "=");
        if (!is_secret(*v)) {
            v++;
            continue;
        }
        if (n >= sizeof name)
            n = sizeof name - 1;
        memset(*v + n + 1, 0, strlen(*v + n + 1)); /* /proc/PID/environ shows these bytes */
        memcpy(name, *v, n);
        name[n] = 0;
        (void)unsetenv(name);
        v = environ;
    }
}

/* ---- the environment of a command ---- */

struct environment {
    struct arena a;
    VEC(char *) list;
};

static void put(struct environment *to, const char *name, const char *value)
{
    size_t n = strlen(name);
    char *line = arena_printf(&to->a, "%s=%s", name, value);
    for (size_t i = 0; i < to->list.n; i++)
        if (strncmp(to->list.data[i], name, n) == 0 && to->list.data[i][n] == '=') {
            to->list.data[i] = line;
            return;
        }
    vec_push(&to->list, line);
}

static const char *get(const struct environment *from, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < from->list.n; i++)
        if (strncmp(from->list.data[i], name, n) == 0 && from->list.data[i][n] == '=')
            return from->list.data[i] + n + 1;
    return NULL;
}

/* "a,b" of the texts of an array. */
static char *joined(struct arena *a, const json_t *array)
{
    struct str s;
    str_init(&s);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const char *text = json_string_value(json_array_get(array, i));
        str_printf(&s, "%s%s", i ? "," : "", text ? text : "");
    }
    char *out = arena_strdup(a, s.data);
    str_release(&s);
    return out;
}

static bool on_card(const struct start_order *o)
{
    const char *first = json_string_value(json_array_get(o->devices, 0));
    return first && str_starts(first, "cuda");
}

/* Cards by their UUID, so that no numbering of anybody's matters; none for a run on the CPU. */
static void put_cards(struct environment *to, const struct start_order *o)
{
    if (!on_card(o)) {
        put(to, "CUDA_VISIBLE_DEVICES", "");
        return;
    }
    bool known = json_array_size(o->uuids) == json_array_size(o->devices);
    struct str numbers;
    str_init(&numbers);
    for (size_t i = 0; i < json_array_size(o->devices); i++) {
        const char *uuid = json_string_value(json_array_get(o->uuids, i));
        const char *device = json_string_value(json_array_get(o->devices, i));
        known = known && uuid && *uuid;
        str_printf(&numbers, "%s%s", i ? "," : "", device && device[4] ? device + 5 : "0");
    }
    put(to, "CUDA_DEVICE_ORDER", "PCI_BUS_ID"); /* NVML's order, which the numbers are of */
    put(to, "CUDA_VISIBLE_DEVICES", known ? joined(&to->a, o->uuids) : numbers.data);
    str_release(&numbers);
}

static void put_hook(struct environment *to)
{
    char dir[1024];
    struct err e;
    if (supervisor_work_hook_install(dir, sizeof dir, &e) != ST_OK) {
        (void)fprintf(stderr, "level=warn msg=\"PyTorch's start-up hook: %s\"\n", e.text);
        return;
    }
    const char *before = get(to, "PYTHONPATH");
    put(to, "PYTHONPATH", before && *before ? arena_printf(&to->a, "%s:%s", dir, before) : dir);
}

static void environment_of(struct environment *to, const struct run_folder *f)
{
    const char *name;
    json_t *value;
    for (char **v = environ; v && *v; v++)
        if (!is_secret(*v))
            vec_push(&to->list, arena_strdup(&to->a, *v));
    json_object_foreach((json_t *)f->o.environment, name, value)
    {
        if (*name && !strchr(name, '=') && json_is_string(value))
            put(to, name, json_string_value(value));
    }
    put_cards(to, &f->o);
    put(to, "SNUG_RUN_ID", f->o.run_id);
    put(to, "SNUG_RUN_DIR", f->dir);
    put(to, "SNUG_DEVICES", joined(&to->a, f->o.devices));
    put(to, "SNUG_BUDGET_BYTES", arena_printf(&to->a, "%" PRId64, f->o.budget_bytes));
    if (on_card(&f->o))
        put_hook(to);
    vec_push(&to->list, NULL);
}

enum status supervisor_work_hook_install(char *dir, size_t cap, struct err *e)
{
    char path[1100], *text = NULL;
    size_t n = 0;
    struct err ignored;
    (void)snprintf(dir, cap, "%s/agents/hook", snug_home());
    (void)run_folder_path(dir, "sitecustomize.py", path, sizeof path);
    bool same = file_read(path, 1 << 20, &text, &n, &ignored) == ST_OK && n == torch_hook_bytes &&
                memcmp(text, torch_hook, n) == 0;
    mem_free(text);
    if (same)
        return ST_OK;
    TRY(dir_make(dir, e));
    return file_write(path, torch_hook, torch_hook_bytes, e);
}

static enum status command_start(struct supervisor *s, struct process_spec *spec, struct err *e)
{
    const struct start_order *o = &s->f.o;
    struct environment environment = {0};
    VEC(char *) argv = {0};
    enum status st = ST_OK;
    arena_init(&environment.a);
    for (size_t i = 0; i < json_array_size(o->argv); i++) {
        const char *word = json_string_value(json_array_get(o->argv, i));
        if (word)
            vec_push(&argv, arena_strdup(&environment.a, word));
    }
    if (argv.n == 0 || argv.n != json_array_size(o->argv) || !*argv.data[0]) {
        st = err_set(e, ST_INVALID, "the command is empty");
    } else {
        vec_push(&argv, NULL);
        environment_of(&environment, &s->f);
        spec->argv = argv.data;
        spec->environment = environment.list.data;
        spec->dir = *o->working_dir ? o->working_dir : s->f.dir;
        st = process_spawn(spec, &s->work, e);
    }
    vec_release(&argv);
    vec_release(&environment.list);
    arena_release(&environment.a);
    return st;
}

/* ---- a graph ---- */

struct graph_work {
    const struct supervisor *s;
    int control_fd;
};

static int graph_run(void *ctx)
{
    const struct graph_work *w = ctx;
    const struct run_folder *f = &w->s->f;
    process_title("snug: run %.8s %s", f->o.run_id, f->o.name);
    (void)setenv("SNUG_RUN_ID", f->o.run_id, 1);
    (void)setenv("SNUG_RUN_DIR", f->dir, 1);
    return w->s->opt->graph(f->dir, w->control_fd);
}

static enum status
start_as(struct supervisor *s, struct process_spec *spec, int control_fd, struct err *e)
{
    struct graph_work w = {.s = s, .control_fd = control_fd};
    if (strcmp(s->f.o.kind, "command") == 0)
        return command_start(s, spec, e);
    if (!s->opt->graph)
        return err_set(e, ST_UNSUPPORTED, "this program runs no graphs");
    if (control_fd >= 0) {
        spec->keep = &control_fd;
        spec->n_keep = 1;
    }
    return process_fork(spec, graph_run, &w, &s->work, e);
}

enum status supervisor_work_start(struct supervisor *s, struct err *e)
{
    int ends[2], pair[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_errno(e, "could not make a pipe");
    if (s->warm && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        (void)close(ends[0]);
        (void)close(ends[1]);
        return err_errno(e, "could not make a pair of sockets");
    }
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(ends[0], F_SETPIPE_SZ, 1 << 20); /* where it may: fewer wakes of a loud run */
    struct process_spec spec = {
        .in = -1,
        .out = ends[1],
        .err = ends[1],
        .group = true,
        .dies_with_us = true,
        .oom_score_adj = OOM_SCORE,
    };
    s->oom_before = process_oom_kills();
    enum status st = start_as(s, &spec, pair[1], e);
    (void)close(ends[1]);
    if (pair[1] >= 0)
        (void)close(pair[1]);
    s->pipe = ends[0];
    s->pair = pair[0];
    return st;
}
