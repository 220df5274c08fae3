/* ssh.c - workers that the server reaches through the system's ssh (ssh.h). */
#define _GNU_SOURCE /* pipe2 */
#include "server/ssh.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "base/rng.h"
#include "server/auth.h"
#include "server/core.h"
#include "server/server_int.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    AGAIN_MS_MIN = 1000,
    AGAIN_MS_MAX = 60000,
    WELL_S = 30,
    GOODBYE_S = 20, /* the agent of a removed worker stops its runs meanwhile */
    FORGET_S = 60,
    PORT_FIRST =
        20000, /* of the far side; one that is taken there ends ssh, and the next is tried */
    PORT_COUNT = 40000
};

/* One worker's connection. */
struct link {
    char name[65], worker_id[33], host[256], devices[1024];
    struct process ssh; /* pid 0: none */
    int leash;          /* its standard input; -1: none */
    int64_t began_ns, again_ns, leaves_ns;
    int failures;
    bool listed, forgets; /* forgets: ssh runs `snug agent forget` */
};
struct ssh {
    VEC(struct link *) links;
    uint64_t ports; /* how many were tried */
};

bool ssh_host_is_valid(const char *host)
{
    size_t n = strlen(host);
    return n > 0 && n < 256 && *host != '-' &&
           strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@:[]") ==
               n;
}

bool ssh_devices_are_valid(const char *devices)
{
    size_t n = strlen(devices);
    return n < 1024 && strspn(devices, "abcdefghijklmnopqrstuvwxyz0123456789:,") == n;
}

/* ---- what is executed ---- */

static int open_log(const struct server *s, const struct link *l)
{
    char path[1200];
    struct err ignored;
    (void)snprintf(path, sizeof path, "%s/agents", s->config->home);
    if (dir_make(path, &ignored) != ST_OK)
        return -1;
    (void)snprintf(path, sizeof path, "%s/agents/ssh-%s.log", s->config->home, l->name);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* `forward` NULL: none. Names and devices are of harmless characters, so quotes hold them. */
static enum status execute(
    struct server *s, struct link *l, const char *forward, const char *remote, int in,
    struct err *e)
{
    char ssh[] = "ssh", plain[] = "-T", option[] = "-o", batch[] = "BatchMode=yes";
    char fail[] = "ExitOnForwardFailure=yes", alive[] = "ServerAliveInterval=15";
    char count[] = "ServerAliveCountMax=4", connect[] = "ConnectTimeout=20", reverse[] = "-R";
    char end[] = "--", *to = mem_strdup(forward ? forward : ""), *text = mem_strdup(remote);
    char *with[] = {ssh,   plain,  option,  batch,   option, fail, option,  alive, option,
                    count, option, connect, reverse, to,     end,  l->host, text,  NULL};
    char *without[] = {ssh, plain, option, batch, option, connect, end, l->host, text, NULL};
    char **environment = child_environment();
    int log = open_log(s, l);
    struct process_spec spec = {
        .argv = forward ? with : without,
        .environment = environment,
        .in = in,
        .out = log,
        .err = log,
        .session = true};
    enum status st = process_spawn(&spec, &l->ssh, e);
    if (log >= 0)
        (void)close(log);
    mem_free(environment);
    mem_free(to);
    mem_free(text);
    return st;
}

/* snug may lie where a login shell alone looks. */
#define REMOTE_PATH "PATH=$PATH:$HOME/.local/bin:$HOME/bin:/usr/local/bin; export PATH; "

static enum status connect_worker(struct server *s, struct link *l, struct err *e)
{
    struct ssh *x = s->inside->ssh;
    char token[SECRET_BYTES], forward[96], remote[2048];
    const char *scheme = s->config->tls_certificate[0] ? "https" : "http";
    int ends[2],
        port = PORT_FIRST + (int)(hash_bytes(l->name, strlen(l->name), x->ports++) % PORT_COUNT);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_errno(e, "could not make a pipe");
    enum status st = auth_worker_mint(s->auth, l->worker_id, l->name, token, e);
    (void)snprintf(forward, sizeof forward, "127.0.0.1:%d:127.0.0.1:%d", port, http_port(s->http));
    (void)snprintf(
        remote, sizeof remote,
        "exec sh -c '" REMOTE_PATH
        "read -r SNUG_JOIN_TOKEN && export SNUG_JOIN_TOKEN && exec snug agent start --foreground "
        "--leash --server %s://127.0.0.1:%d --name %s%s%s'",
        scheme, port, l->name, *l->devices ? " --devices " : "", l->devices);
    if (st == ST_OK)
        st = execute(s, l, forward, remote, ends[0], e);
    (void)close(ends[0]);
    if (st == ST_OK) {
        char line[SECRET_BYTES + 2];
        int n = snprintf(line, sizeof line, "%s\n", token);
        l->leash = ends[1];
        (void)!write(l->leash, line, (size_t)n); /* fits the pipe, whoever reads */
        secret_wipe(line, sizeof line);
        l->began_ns = clock_ns();
        log_info("worker %s: ssh %s", l->name, l->host);
    } else {
        (void)close(ends[1]);
    }
    secret_wipe(token, sizeof token);
    return st;
}

/* What a removed worker kept on its machine. */
static void forget_there(struct server *s, struct link *l)
{
    char remote[512];
    struct err e;
    (void)snprintf(
        remote, sizeof remote, "exec sh -c '" REMOTE_PATH "exec snug agent forget --name %s'",
        l->name);
    l->forgets = true;
    l->leaves_ns = clock_ns() + (int64_t)FORGET_S * 1000000000;
    if (execute(s, l, NULL, remote, -1, &e) != ST_OK)
        log_warn("worker %s: %s", l->name, e.text);
}

/* ---- connections as they come and go ---- */

static void leash_end(struct link *l)
{
    if (l->leash >= 0)
        (void)close(l->leash);
    l->leash = -1;
}

static void later(struct link *l, int64_t now_ns)
{
    if (l->began_ns && now_ns - l->began_ns > (int64_t)WELL_S * 1000000000)
        l->failures = 0;
    int64_t ms = (int64_t)AGAIN_MS_MIN << (l->failures < 6 ? l->failures : 6);
    l->failures++;
    l->again_ns = now_ns + (ms < AGAIN_MS_MAX ? ms : AGAIN_MS_MAX) * 1000000;
}

static struct link *link_of(struct ssh *x, const char *name)
{
    for (size_t i = 0; i < x->links.n; i++)
        if (strcmp(x->links.data[i]->name, name) == 0)
            return x->links.data[i];
    return NULL;
}

/* Takes in what the core lists: every worker that is to be reached. */
static void list_workers(struct server *s)
{
    struct ssh *x = s->inside->ssh;
    json_t *list = core_ssh_workers(s->core), *one;
    size_t i;
    for (i = 0; i < x->links.n; i++)
        x->links.data[i]->listed = false;
    json_array_foreach(list, i, one)
    {
        struct link *l = link_of(x, json_get_str(one, "name", ""));
        const char *host = json_get_str(one, "host", "");
        const char *devices = json_get_str(one, "devices", "");
        if (!ssh_host_is_valid(host) || !ssh_devices_are_valid(devices))
            continue;
        if (!l) {
            l = mem_alloc(sizeof *l);
            l->leash = -1;
            vec_push(&x->links, l);
        } else if (l->leaves_ns) {
            continue; /* the one before of that name goes first */
        }
        (void)snprintf(l->name, sizeof l->name, "%s", json_get_str(one, "name", ""));
        (void)snprintf(l->worker_id, sizeof l->worker_id, "%s", json_get_str(one, "worker_id", ""));
        (void)snprintf(l->host, sizeof l->host, "%s", host);
        (void)snprintf(l->devices, sizeof l->devices, "%s", devices);
        l->listed = !json_get_bool(one, "disabled", false);
    }
    json_decref(list);
}

static void keep_open(struct server *s, struct link *l, int64_t now_ns)
{
    struct process_end end;
    struct err e;
    if (l->ssh.pid && process_wait(&l->ssh, 0, &end)) {
        l->ssh.pid = 0;
        leash_end(l);
        later(l, now_ns);
        log_warn(
            "worker %s: ssh %s ended (exit status %d); agents/ssh-%s.log says more", l->name,
            l->host, end.exit_code, l->name);
    }
    if (!l->ssh.pid && now_ns >= l->again_ns && connect_worker(s, l, &e) != ST_OK) {
        log_warn("worker %s: %s", l->name, e.text);
        l->ssh.pid = 0;
        later(l, now_ns);
    }
}

/* Removed or disabled: its agent is told by the core, and has a while. True: it is gone. */
static bool let_go(struct server *s, struct link *l, int64_t now_ns)
{
    struct process_end end;
    if (l->leaves_ns == 0)
        l->leaves_ns = now_ns + (int64_t)GOODBYE_S * 1000000000;
    if (l->ssh.pid && !process_wait(&l->ssh, 0, &end)) {
        if (now_ns < l->leaves_ns)
            return false;
        leash_end(l);
        (void)process_signal(&l->ssh, SIGTERM);
        if (!process_wait(&l->ssh, 1000, &end))
            (void)process_signal(&l->ssh, SIGKILL);
        (void)process_wait(&l->ssh, 1000, &end);
    }
    l->ssh.pid = 0;
    leash_end(l);
    bool removed = core_worker_name_free(s->core, l->name, &(struct err){0}) == ST_OK;
    if (l->forgets || !removed)
        return true;
    forget_there(s, l);
    return l->ssh.pid == 0;
}

void ssh_watch(struct server *s)
{
    struct server_inside *in = s->inside;
    int64_t now_ns = clock_ns();
    if (!in->ssh)
        in->ssh = mem_alloc(sizeof *in->ssh);
    list_workers(s);
    for (size_t i = 0; i < in->ssh->links.n;) {
        struct link *l = in->ssh->links.data[i];
        if (l->listed && !l->leaves_ns) {
            keep_open(s, l, now_ns);
        } else if (let_go(s, l, now_ns)) {
            mem_free(l);
            in->ssh->links.data[i] = in->ssh->links.data[--in->ssh->links.n];
            continue;
        }
        i++;
    }
}

void ssh_close(struct server *s)
{
    struct ssh *x = s->inside->ssh;
    struct process_end end;
    for (size_t i = 0; x && i < x->links.n; i++)
        leash_end(x->links.data[i]);
    for (size_t i = 0; x && i < x->links.n; i++) {
        struct link *l = x->links.data[i];
        if (l->ssh.pid && !process_wait(&l->ssh, 2000, &end)) {
            (void)process_signal(&l->ssh, SIGTERM);
            (void)process_wait(&l->ssh, 1000, &end);
        }
        mem_free(l);
    }
    if (x)
        vec_release(&x->links);
    mem_free(x);
    s->inside->ssh = NULL;
}
