/* ssh.h - workers that the server reaches through the system's ssh.
 *
 * Of such a worker the server keeps its name and `HOST` (as in `ssh HOST`: the user's own
 * configuration, keys and known hosts hold) and which devices it is to offer. One ssh stays open
 * for it:
 *
 *     ssh -T -R 127.0.0.1:N:SERVER HOST 'snug agent start --foreground --leash ...'
 *
 * The agent there speaks to 127.0.0.1:N, which is this server's door. Its credential is made anew
 * for each connection and goes over ssh's standard input, so that neither disk nor process list has
 * it; the same input is its leash: when the connection ends the agent leaves, its runs go on, and
 * the next connection's agent takes them over (W7). Removing a worker ends the connection and has
 * `snug agent forget` delete what it kept there.
 *
 * One thread, the one of server_run, calls these.
 */
#ifndef SERVER_SSH_H
#define SERVER_SSH_H

#include "server/server.h"

/* A host as ssh takes it, and no option of it: 1 to 255 of letters, digits and ". _ - @ : [ ]". */
bool ssh_host_is_valid(const char *host);
/* "cuda:0,cuda:1", or "". */
bool ssh_devices_are_valid(const char *devices);

/* A few times a second: opens what should be open, closes what should not. */
void ssh_watch(struct server *s);
void ssh_close(struct server *s); /* all connections; the runs go on */

#endif
