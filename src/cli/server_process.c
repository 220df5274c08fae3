/* server_process.c - finds the process of the server. */
#include "cli/server_process.h"

#include "base/env.h"
#include "base/str.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 16 };

const char *server_file(const char *name, char *buf, size_t cap)
{
    return path_join(snug_home(), name, buf, cap);
}

/* Whether the process has this file open, by /proc/PID/fd. */
static bool has_open(pid_t pid, const char *path)
{
    char real[PATH_MAX], folder[64], link[400], target[PATH_MAX];
    bool found = false;
    (void)snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *d = realpath(path, real) ? opendir(folder) : NULL;
    for (const struct dirent *entry; d && !found && (entry = readdir(d));) {
        (void)snprintf(link, sizeof link, "%s/%s", folder, entry->d_name);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        found = n > 0 && strcmp(target, real) == 0;
    }
    if (d)
        (void)closedir(d);
    return found;
}

static enum status none(struct err *e)
{
    (void)err_set(e, ST_NOT_FOUND, "no server runs under \"%s\"", snug_home());
    err_hint(e, "`snug start` starts one");
    return ST_NOT_FOUND;
}

enum status server_process_find(struct server_process *out, struct err *e)
{
    char path[1100];
    json_t *said;
    *out = (struct server_process){0};
    (void)server_file("server.json", path, sizeof path);
    if (!file_exists(path))
        return none(e);
    TRY(json_read_file(path, FILE_BYTES_MAX, &said, e));
    out->process = process_of((pid_t)json_get_i64(said, "pid", 0));
    (void)snprintf(out->url, sizeof out->url, "%s", json_get_str(said, "url", ""));
    (void)snprintf(out->version, sizeof out->version, "%s", json_get_str(said, "version", ""));
    json_decref(said);
    (void)server_file("server.lock", path, sizeof path);
    if (out->process.pid > 0 && process_alive(&out->process) && has_open(out->process.pid, path))
        return ST_OK;
    *out = (struct server_process){0};
    return none(e);
}
