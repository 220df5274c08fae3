/* cmd_start.c - `snug start`: the server, in the background (by starting this program again with
 * --foreground and waiting until it answers) or here. */
#include "base/client.h"
#include "base/env.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/server_process.h"
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { START_S = 120, LOG_BYTES_MAX = 16 << 20, ANSWER_BYTES_MAX = 1 << 20, ARGV_MAX = 16 };

/* ---- in the foreground ---- */

static volatile sig_atomic_t stop_asked;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stop_asked = 1;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGHUP, &act, NULL);
}

/* What the line says, over environment and config.json. */
static json_t *flags_of(const struct args *a)
{
    static const struct {
        enum option_id id;
        const char *setting;
    } rows[] = {
        {OPTION_HOST, "host"},
        {OPTION_PORT, "port"},
        {OPTION_TLS_CERT, "tls_certificate"},
        {OPTION_TLS_KEY, "tls_key"}};
    json_t *flags = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (a->option[rows[i].id].given)
            json_put_str(flags, rows[i].setting, a->option[rows[i].id].text);
    if (a->option[OPTION_ALLOW_COMMANDS].given)
        json_put_bool(flags, "allow_commands", true);
    return flags;
}

static enum status serve(const struct args *a, struct err *e)
{
    struct server_config config;
    struct server *s = NULL;
    json_t *flags = flags_of(a);
    enum status st = server_config_read(&config, flags, e);
    json_decref(flags);
    if (st != ST_OK)
        return st;
    catch_signals();
    st = server_open(&config, &s, e);
    if (st == ST_OK) {
        log_info("serving at %s, process %d, %s", server_url(s), (int)getpid(), snug_home());
        st = server_run(s, &stop_asked, e);
        log_info("stopping");
        server_close(s);
    }
    server_config_release(&config);
    return st;
}

/* ---- in the background ---- */

/* Appends; one that has grown large is put aside first. */
static int open_log(struct err *e)
{
    char path[1100], old[1110];
    struct stat s;
    (void)server_file("server.log", path, sizeof path);
    (void)snprintf(old, sizeof old, "%s.1", path);
    if (stat(path, &s) == 0 && s.st_size > LOG_BYTES_MAX)
        (void)rename(path, old);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        (void)err_errno(e, "could not open \"%s\"", path);
    return fd;
}

/* Where the server's own answer goes, which says why it could not start. */
static int open_answer(char *path, size_t cap, struct err *e)
{
    (void)server_file("server.start", path, cap);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        (void)err_errno(e, "could not open \"%s\"", path);
    return fd;
}

static enum status
spawn(const struct args *a, int log, int answer, struct process *p, struct err *e)
{
    static const enum option_id handed[] = {
        OPTION_HOST, OPTION_PORT, OPTION_TLS_CERT, OPTION_TLS_KEY};
    char self[PATH_MAX], start[] = "start", foreground[] = "--foreground", json[] = "--json";
    char allow[] = "--allow-commands", words[2 * 4][1200];
    char *argv[ARGV_MAX] = {self, start, foreground, json};
    int n = 4, w = 0;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return err_errno(e, "could not find this program");
    self[length] = 0;
    for (size_t i = 0; i < sizeof handed / sizeof *handed; i++) {
        if (!a->option[handed[i]].given)
            continue;
        (void)snprintf(words[w], sizeof words[w], "--%s", option_info(handed[i]).name);
        argv[n++] = words[w++];
        (void)snprintf(words[w], sizeof words[w], "%s", a->option[handed[i]].text);
        argv[n++] = words[w++];
    }
    if (a->option[OPTION_ALLOW_COMMANDS].given)
        argv[n++] = allow;
    struct process_spec spec = {.argv = argv, .in = -1, .out = answer, .err = log, .session = true};
    return process_spawn(&spec, p, e);
}

/* It writes its answer only when it could not start: the same error, said here. */
static enum status why_it_ended(const char *answer_path, struct err *e)
{
    json_t *answer = NULL;
    char log[1100];
    struct err ignored;
    (void)server_file("server.log", log, sizeof log);
    if (json_read_file(answer_path, ANSWER_BYTES_MAX, &answer, &ignored) != ST_OK)
        answer = NULL;
    const json_t *error = json_object_get(answer, "error");
    const char *code = json_get_str(error, "code", "");
    enum status st = ST_FAILED;
    for (int i = 1; i < ST_COUNT; i++)
        if (strcmp(code, status_code((enum status)i)) == 0)
            st = (enum status)i;
    (void)err_set(e, st, "%s", json_get_str(error, "message", "the server ended at once"));
    err_detail(e, "%s", json_get_str(error, "detail", ""));
    err_hint(e, "%s", json_get_str(error, "hint", ""));
    if (!e->hint[0])
        err_hint(e, "\"%s\" may say more", log);
    json_decref(answer);
    return st;
}

/* Whether the server answers; ST_OK alone counts. */
static bool is_healthy(const char *url)
{
    struct client *c;
    struct err ignored;
    json_t *health = NULL;
    struct client_options o = {.server = url};
    if (client_open(&o, &c, &ignored) != ST_OK)
        return false;
    bool well = client_is_local(c) && client_get(c, "/api/health", 5, &health, &ignored) == ST_OK;
    json_decref(health);
    client_close(c);
    return well;
}

static enum status wait_until_well(
    const struct process *p, const char *answer, struct server_process *s, struct err *e)
{
    struct timespec piece = {.tv_nsec = 20000000};
    int64_t until = clock_ns() + (int64_t)START_S * 1000000000;
    struct process_end end;
    struct err ignored;
    while (clock_ns() < until) {
        if (process_wait(p, 0, &end))
            return why_it_ended(answer, e);
        if (server_process_find(s, &ignored) == ST_OK && s->process.pid == p->pid &&
            is_healthy(s->url))
            return ST_OK;
        (void)nanosleep(&piece, NULL);
    }
    (void)err_set(e, ST_BUSY, "the server (process %d) does not answer yet", (int)p->pid);
    err_hint(e, "it may be checking its database; `snug status` tells when it is there");
    return ST_BUSY;
}

static enum status start(const struct args *a, struct server_process *s, struct err *e)
{
    char answer_path[1100];
    struct process p;
    struct err ignored;
    TRY(dir_make(snug_home(), e));
    if (server_process_find(s, &ignored) == ST_OK) {
        (void)err_set(
            e, ST_CONFLICT, "a server runs already under \"%s\": %s (process %d)", snug_home(),
            s->url, (int)s->process.pid);
        err_hint(e, "`snug status` shows it, `snug stop` stops it");
        return ST_CONFLICT;
    }
    int log = open_log(e), answer = log >= 0 ? open_answer(answer_path, sizeof answer_path, e) : -1;
    enum status st = answer >= 0 ? spawn(a, log, answer, &p, e) : e->status;
    if (log >= 0)
        (void)close(log);
    if (answer >= 0)
        (void)close(answer);
    if (st == ST_OK)
        st = wait_until_well(&p, answer_path, s, e);
    if (answer >= 0)
        (void)unlink(answer_path);
    return st;
}

int cmd_start(const struct args *a)
{
    struct err e = {0};
    struct server_process s = {0};
    json_t *d = NULL;
    if (a->option[OPTION_FOREGROUND].given)
        return answer_end(a->json, serve(a, &e), &e, NULL);
    enum status st = start(a, &s, &e);
    if (st == ST_OK && a->json)
        d = json_pack(
            "{s:s, s:i, s:s}", "url", s.url, "pid", (int)s.process.pid, "home", snug_home());
    if (st == ST_OK && !a->json)
        (void)printf("the server is at %s\n", s.url);
    return answer_end(a->json, st, &e, d);
}
