/* server_process.h - the server of this SNUG_HOME as a process: what server.json says of it, and
 * the proof that a process is it.
 *
 * A process number alone proves nothing: it may be given away again, and server.json may be old. A
 * process is the server of this SNUG_HOME when it has the file SNUG_HOME/server.lock open. */
#ifndef CLI_SERVER_PROCESS_H
#define CLI_SERVER_PROCESS_H

#include "base/json.h"
#include "base/process.h"

struct server_process {
    struct process process;
    char url[256], version[32];
};
/* ST_NOT_FOUND: none runs. */
enum status server_process_find(struct server_process *out, struct err *e) NODISCARD;
/* A file of SNUG_HOME, into buf. */
const char *server_file(const char *name, char *buf, size_t cap);

#endif
