/* cmd_agent.c - `snug agent`: start a worker here or in the background, stop it, say how it is. */
#define _GNU_SOURCE /* pipe2 */
#include "agent/agent.h"
#include "base/client.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/version.h"
#include "child/child.h"
#include "cli/answer.h"
#include "cli/commands.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CONNECT_S = 15, STOP_S = 60, LOG_BYTES_MAX = 16 << 20 };

/* What `start` was told, copied: the command line is overwritten later. */
struct start {
    char name[65], known_as[65], server[1024], secret[256], devices[1024], mounts[1024], pool[65];
    struct agent_options o;
    int say; /* where why it ended is written to; -1: nowhere */
};

static const char *copied(char *to, size_t cap, const struct option_value *v)
{
    if (!v->given)
        return NULL;
    (void)snprintf(to, cap, "%s", v->text);
    return to;
}

/* ---- whom it is about ---- */

/* How many workers beside "local" have a file agents/NAME.SUFFIX here, and the name of one. `live`:
 * those alone that run. */
static int named_here(const char *suffix, bool live, char name[65])
{
    char path[1100];
    struct dirent *entry;
    size_t tail = strlen(suffix);
    int n = 0;
    (void)snprintf(path, sizeof path, "%s/agents", snug_home());
    DIR *d = opendir(path);
    while (d && (entry = readdir(d))) {
        char found[256];
        struct agent_state state;
        struct err ignored;
        size_t whole = strlen(entry->d_name);
        if (whole <= tail || !str_ends(entry->d_name, suffix))
            continue;
        (void)snprintf(found, sizeof found, "%.*s", (int)(whole - tail), entry->d_name);
        if (!agent_name_valid(found) || strcmp(found, "local") == 0 ||
            (live && (agent_status(found, &state, &ignored) != ST_OK || !state.pid)))
            continue;
        (void)snprintf(name, 65, "%.64s", found);
        n++;
    }
    if (d)
        (void)closedir(d);
    return n;
}

/* Without --name, where the worker of the host's name has not joined and no server is here: the one
 * worker that has, so that `snug agent start` alone is enough under whichever name it joined. */
static void name_of_joined(const struct args *a, char name[65])
{
    const struct option_value *v = a->option;
    char path[1100], one[65];
    if (v[OPTION_NAME].given || v[OPTION_SERVER].given || v[OPTION_TOKEN].given ||
        v[OPTION_BUILTIN].given || v[OPTION_ONE_SHOT].given || getenv("SNUG_JOIN_TOKEN"))
        return;
    (void)snprintf(path, sizeof path, "%s/server.json", snug_home());
    if (access(path, F_OK) == 0 || access(agent_path(name, "json", path, sizeof path), F_OK) == 0 ||
        named_here(".json", false, one) != 1)
        return;
    memcpy(name, one, sizeof one);
}

/* Without --name, where no agent of the host's name runs: the only one that does. */
static void name_of_live(const struct args *a, char name[65])
{
    char one[65];
    struct agent_state state;
    struct err ignored;
    if (a->option[OPTION_NAME].given ||
        (agent_status(name, &state, &ignored) == ST_OK && state.pid))
        return;
    if (named_here(".lock", true, one) == 1)
        memcpy(name, one, sizeof one);
}

/* ---- start ---- */

/* A worker that joined before goes back to its server with its own credential. */
static void remembered(struct start *s)
{
    char path[1100];
    json_t *doc;
    struct err ignored;
    if (s->o.secret ||
        json_read_file(agent_path(s->name, "json", path, sizeof path), 1 << 16, &doc, &ignored) !=
            ST_OK)
        return;
    const char *server = json_get_str(doc, "server", ""), *secret = json_get_str(doc, "token", "");
    if (*secret && (!s->o.server || strcmp(s->o.server, server) == 0)) {
        (void)snprintf(s->server, sizeof s->server, "%s", server);
        (void)snprintf(s->secret, sizeof s->secret, "%s", secret);
        s->o.server = s->server;
        s->o.secret = s->secret;
        (void)snprintf(
            s->known_as, sizeof s->known_as, "%.64s", json_get_str(doc, "name", s->name));
        s->o.known_as = s->known_as;
    }
    json_decref(doc);
}

static enum status start_read(const struct args *a, struct start *s, struct err *e)
{
    const struct option_value *v = a->option;
    bool builtin = v[OPTION_BUILTIN].given, once = v[OPTION_ONE_SHOT].given;
    char *token = getenv("SNUG_JOIN_TOKEN");
    const char *beat = getenv("SNUG_AGENT_HEARTBEAT_S");
    double heartbeat_s = 0;
    agent_name_default(v[OPTION_NAME].given ? v[OPTION_NAME].text : NULL, builtin, s->name);
    name_of_joined(a, s->name);
    if (once && !v[OPTION_NAME].given) { /* several of them may be here */
        char plain[65];
        memcpy(plain, s->name, sizeof plain);
        (void)snprintf(s->name, sizeof s->name, "%.50s-%d", plain, (int)getpid());
    }
    if (!builtin && strcmp(s->name, "local") == 0)
        return err_set(
            e, ST_USAGE, "the name \"local\" is that of a server's own worker: give --name");
    if (v[OPTION_NAME].given && !agent_name_valid(v[OPTION_NAME].text))
        return err_set(
            e, ST_USAGE,
            "\"%.80s\" cannot name a worker: 1 to 64 of letters, digits, '.', '_', '-'",
            v[OPTION_NAME].text);
    if (beat && (!str_to_f64(beat, &heartbeat_s) || !(heartbeat_s > 0)))
        heartbeat_s = 0;
    s->o = (struct agent_options){
        .name = s->name,
        .server = copied(s->server, sizeof s->server, &v[OPTION_SERVER]),
        .secret = copied(s->secret, sizeof s->secret, &v[OPTION_TOKEN]),
        .devices = copied(s->devices, sizeof s->devices, &v[OPTION_DEVICES]),
        .mounts = copied(s->mounts, sizeof s->mounts, &v[OPTION_MOUNTS]),
        .pool = copied(s->pool, sizeof s->pool, &v[OPTION_POOL]),
        .one_shot = once,
        .builtin = builtin,
        .leash = v[OPTION_LEASH].given,
        .heartbeat_s = heartbeat_s,
        .graph = child_graph,
        .version = SNUG_VERSION,
        .commit = snug_commit(),
    };
    if (!s->o.secret && token && *token) {
        (void)snprintf(s->secret, sizeof s->secret, "%s", token);
        s->o.secret = s->secret;
    }
    if (token) { /* /proc/PID/environ shows it too */
        memset(token, 0, strlen(token));
        (void)unsetenv("SNUG_JOIN_TOKEN");
    }
    remembered(s);
    return ST_OK;
}

/* Says in one line why it ended, to whoever waits for it to begin. */
static int start_here(void *ctx)
{
    struct start *s = ctx;
    struct err e = {0};
    enum status st = agent_run(&s->o, &e);
    if (st != ST_OK && s->say >= 0) {
        char line[2048];
        int n = snprintf(line, sizeof line, "%d\n%s\n%s", (int)st, e.text, e.hint);
        (void)!write(s->say, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    }
    if (st != ST_OK)
        log_line(LOG_ERROR, "%s", e.text);
    return status_exit(st);
}

static int log_open(const char *name, struct err *e)
{
    char path[1100], old[1110];
    struct stat st;
    (void)agent_path(name, "log", path, sizeof path);
    (void)snprintf(old, sizeof old, "%s.1", path);
    if (stat(path, &st) == 0 && st.st_size > LOG_BYTES_MAX)
        (void)rename(path, old);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        (void)err_errno(e, "cannot open \"%s\"", path);
    return fd;
}

/* What it wrote before it ended. */
static enum status why_ended(int from, struct err *e)
{
    char text[2048] = "", *lines[3] = {text, text, text};
    ssize_t n = read(from, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    char *first = strchr(text, '\n');
    if (!first)
        return err_set(e, ST_FAILED, "the agent ended; its log may say why");
    *first = 0;
    lines[1] = first + 1;
    lines[2] = strchr(lines[1], '\n');
    if (lines[2])
        *lines[2]++ = 0;
    int64_t st = ST_FAILED;
    (void)str_to_i64(text, &st);
    (void)err_set(e, st > 0 && st < ST_COUNT ? (enum status)st : ST_FAILED, "%s", lines[1]);
    if (lines[2] && *lines[2])
        err_hint(e, "%s", lines[2]);
    return e->status;
}

/* Until it is connected, or has ended, or has had its time. */
static enum status wait_connected(
    const struct process *p, const char *name, int from, struct agent_state *state, struct err *e)
{
    struct timespec pause = {0, 50000000};
    struct process_end end;
    for (int i = 0; i < CONNECT_S * 20; i++) {
        if (process_wait(p, 0, &end))
            return why_ended(from, e);
        TRY(agent_status(name, state, e));
        if (state->pid == p->pid && *state->server)
            return ST_OK;
        (void)nanosleep(&pause, NULL);
    }
    return ST_OK;
}

static enum status start_behind(struct start *s, struct agent_state *state, struct err *e)
{
    char dir[1100];
    int ends[2], log;
    struct process p;
    (void)snprintf(dir, sizeof dir, "%s/agents", snug_home());
    TRY(dir_make(dir, e));
    TRY(agent_status(s->name, state, e));
    if (state->pid) {
        (void)err_set(e, ST_CONFLICT, "an agent named %s is running here", s->name);
        err_hint(e, "`snug agent stop --name %s` ends it.", s->name);
        return e->status;
    }
    log = log_open(s->name, e);
    if (log < 0)
        return e->status;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        (void)close(log);
        return err_errno(e, "could not make a pipe");
    }
    s->say = ends[1];
    struct process_spec spec = {
        .in = -1, .out = log, .err = log, .keep = &ends[1], .n_keep = 1, .session = true};
    enum status st = process_fork(&spec, start_here, s, &p, e);
    (void)close(log);
    (void)close(ends[1]);
    if (st == ST_OK)
        st = wait_connected(&p, s->name, ends[0], state, e);
    state->pid = p.pid;
    (void)close(ends[0]);
    return st;
}

static int
start_answer(const struct args *a, const struct start *s, const struct agent_state *state)
{
    char path[1100];
    (void)agent_path(s->name, "log", path, sizeof path);
    if (!a->json) {
        struct str out;
        str_init(&out);
        if (*state->server)
            str_printf(&out, "worker %s is connected to %s\n", s->name, state->server);
        else
            str_printf(
                &out, "worker %s runs and is not connected yet; it goes on trying\nlog: %s\n",
                s->name, path);
        int rc = answer_text(out.data);
        str_release(&out);
        return rc;
    }
    json_t *d = json_object();
    json_put_str(d, "name", s->name);
    json_put_i64(d, "pid", state->pid);
    json_put_bool(d, "connected", *state->server != 0);
    json_put_str(d, "server", state->server);
    json_put_str(d, "log", path);
    return answer_end(true, ST_OK, NULL, d);
}

/* Without a server to go to, said before anything runs in the background. */
static enum status server_check(const struct start *s, struct err *e)
{
    struct client *c = NULL;
    enum status st =
        client_open(&(struct client_options){.server = s->o.server, .secret = s->o.secret}, &c, e);
    client_close(c);
    return st;
}

static int agent_start(const struct args *a)
{
    struct start s = {.say = -1};
    struct agent_state state;
    struct err e = {0};
    enum status st = start_read(a, &s, &e);
    if (st == ST_OK && !s.o.builtin)
        st = server_check(&s, &e);
    if (st == ST_OK && (a->option[OPTION_FOREGROUND].given || s.o.builtin)) {
        st = agent_run(&s.o, &e);
        return answer_end(a->json, st, &e, NULL);
    }
    if (st == ST_OK)
        st = start_behind(&s, &state, &e);
    return st == ST_OK ? start_answer(a, &s, &state) : answer_end(a->json, st, &e, NULL);
}

/* ---- stop, status ---- */

static int agent_end(const struct args *a)
{
    const struct option_value *v = a->option;
    char name[65];
    struct err e = {0};
    int64_t seconds = v[OPTION_TIMEOUT].given ? v[OPTION_TIMEOUT].number : STOP_S;
    agent_name_default(v[OPTION_NAME].given ? v[OPTION_NAME].text : NULL, false, name);
    name_of_live(a, name);
    enum status st = agent_stop(name, (int)(seconds > 86400 ? 86400 : seconds) * 1000, &e);
    if (st == ST_OK && !a->json) {
        char text[128];
        (void)snprintf(text, sizeof text, "worker %s has stopped\n", name);
        return answer_text(text);
    }
    json_t *d = json_object();
    json_put_str(d, "name", name);
    return answer_end(a->json, st, &e, d);
}

static int agent_removed(const struct args *a)
{
    char name[65], text[128];
    struct err e = {0};
    agent_name_default(
        a->option[OPTION_NAME].given ? a->option[OPTION_NAME].text : NULL, false, name);
    enum status st = agent_forget(name, &e);
    (void)snprintf(text, sizeof text, "what worker %s kept here is deleted\n", name);
    if (st == ST_OK && !a->json)
        return answer_text(text);
    return answer_end(a->json, st, &e, NULL);
}

static enum status add_state(const char *name, json_t *list, struct str *out, struct err *e)
{
    struct agent_state state;
    TRY(agent_status(name, &state, e));
    json_t *one = json_object();
    json_put_str(one, "name", name);
    json_put_i64(one, "pid", state.pid);
    json_put_bool(one, "runs", state.pid != 0);
    json_put_str(one, "server", state.server);
    json_put_i64(one, "live_runs", state.runs);
    (void)json_array_append_new(list, one);
    if (!state.pid)
        str_printf(out, "%-20s does not run\n", name);
    else if (*state.server)
        str_printf(
            out, "%-20s process %lld, connected to %s, %lld runs\n", name, (long long)state.pid,
            state.server, (long long)state.runs);
    else
        str_printf(
            out, "%-20s process %lld, not connected, %lld runs\n", name, (long long)state.pid,
            (long long)state.runs);
    return ST_OK;
}

/* One by its name, or all that ever ran under this SNUG_HOME. */
static enum status states(const struct args *a, json_t *list, struct str *out, struct err *e)
{
    char path[1100];
    struct dirent *entry;
    enum status st = ST_OK;
    if (a->option[OPTION_NAME].given)
        return add_state(a->option[OPTION_NAME].text, list, out, e);
    (void)snprintf(path, sizeof path, "%s/agents", snug_home());
    DIR *d = opendir(path);
    while (d && st == ST_OK && (entry = readdir(d))) {
        char name[256];
        size_t n = strlen(entry->d_name);
        if (!str_ends(entry->d_name, ".lock"))
            continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)(n - 5), entry->d_name);
        if (agent_name_valid(name))
            st = add_state(name, list, out, e);
    }
    if (d)
        (void)closedir(d);
    return st;
}

static int agent_states(const struct args *a)
{
    struct err e = {0};
    struct str out;
    json_t *d = json_object(), *list = json_array();
    int rc;
    str_init(&out);
    enum status st = states(a, list, &out, &e);
    if (st == ST_OK && out.n == 0)
        str_add(&out, "no agent has run here\n");
    json_put(d, "agents", list);
    if (st == ST_OK && !a->json) {
        rc = answer_text(out.data);
        json_decref(d);
    } else {
        rc = answer_end(a->json, st, &e, d);
    }
    str_release(&out);
    return rc;
}

int cmd_agent(const struct args *a)
{
    struct err e;
    const char *what = a->argument[0];
    if (strcmp(what, "start") == 0)
        return agent_start(a);
    if (strcmp(what, "stop") == 0)
        return agent_end(a);
    if (strcmp(what, "status") == 0)
        return agent_states(a);
    if (strcmp(what, "forget") == 0)
        return agent_removed(a);
    return answer_end(
        a->json, err_set(&e, ST_USAGE, "agent: start, stop, status or forget, not \"%.40s\"", what),
        &e, NULL);
}
