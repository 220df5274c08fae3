/* checker.h - judges a history of the simulation by the queue's promises, after the fact.
 *
 * It knows nothing of the core: it keeps a model of its own from what the lines say, recounts every
 * card at every admission, and asks the slow reference scheduler at every snapshot.
 *
 * FORMAT of a history: a JSON object a line; "t" is the monotonic time in nanoseconds, "e" says
 * what it is. boot, down: the server. submitted, repeated, refused: answers to submissions. cancel,
 * drain, enable, mode, remove: acknowledged acts of people. call: a message of an agent that the
 * server has worked off. row, event: what the server tells of a run when it changed. handed: a
 * start left the server. process, gone: a run's processes began, or are gone, on a machine (the
 * truth). agent_killed. snapshot: waiting runs with their reasons, cards as the panel shows them.
 * quiet: nothing hinders anything any more. final: the status of every run.
 *
 * WHAT IS JUDGED
 *   promise-P1   every acknowledged run is there at the end; a key names one run
 *   promise-P2   an attempt starts once, and no two attempts of a run live at a time
 *   promise-P3   states that are final stay so, nothing follows a run's last event, every run ends
 *   promise-P4   at every admission: queued runs of an exclusive card stay within its limit
 *   promise-P5   at every admission: the budget fits the ledger; at every snapshot: recount agrees
 *   promise-P6   no run is admitted before an earlier one that asks for the same
 *   promise-P9   no start is handed out after a cancel; no card is given away before its processes
 *                are gone
 *   promise-P10  events of a run arrive complete and in order; runs of a lost agent are gone by the
 *                server's deadline
 *   promise-P11  nothing is admitted to a worker that has not connected since the server started
 *   promise-P12  no event of another attempt is taken
 *   promise-P14  every reason is that of the reference; what it can place is placed
 */
#ifndef TESTS_SIM_CHECKER_H
#define TESTS_SIM_CHECKER_H

#include "base/err.h"

#include <stdint.h>

struct verdict {
    bool broken;
    char text[900]; /* the first promise that is broken, and how */
    int64_t lines, runs, admissions, snapshots, reasons, starts, restarts;
};
/* ST_OK also when a promise is broken; an error: the history cannot be read. */
enum status check_history(const char *path, struct verdict *out, struct err *e) NODISCARD;

#endif
