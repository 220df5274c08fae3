/* child.h - what runs inside a run's supervised process: the graph of a start_order, and in a warm
 * canvas child one run after another.
 *
 *     exit status = child_work(&(struct child_options){.dir = RUN FOLDER, .control_fd = -1});
 *
 * CONTRACT WITH THE SUPERVISOR (wire/wire.h says what a run folder is)
 *   Before: DIR/start.json is there, of kind "graph". stdout and stderr go where the supervisor
 * wants the run's output (output.log); the result's document is not written to them. Events: the
 * work appends to DIR/events.jsonl, sequences going on after the last whole line that is there.
 * Nobody else appends meanwhile. Stop: SIGTERM or SIGINT; the run ends within a batch and writes
 * its interrupt checkpoint. Why is read from DIR/stop, which whoever asks writes whole before the
 * signal: the code of a cause
 *   ("cancelled", "timed_out", "server_stopped", "agent_stopped"); without it "agent_stopped". A
 * second signal ends the process at once. End: the last thing done for a run is DIR/result.json,
 * written whole: a run_end without exit_code and signal. The supervisor fills these in, appends the
 * event "ended" when the tree is gone, and makes a run_end of its own where there is no result.json
 * (CAUSE_CRASHED, or out_of_memory where the host's oom_kill count rose). Exit status: 0 done, 1
 * failed, 3 out of memory, 130 stopped, as `snug run`.
 *
 * WARM CHILDREN  With a control_fd (one end of a stream socket pair) the process stays after its
 * run. Lines of JSON from the supervisor:
 *     {"run": DIR}          execute DIR/start.json of the same tab, devices and budget; its
 * supervisor holds DIR's lock
 *     {"evict": "caches"}   drop cached outputs and weights, give their memory back
 *     {"exit": true}        end; so does the end of the stream
 * and to the supervisor:
 *     {"ended": DIR, "exit_code": N, "caches": C}    after result.json of DIR
 *     {"caches": C}                                  after an eviction
 * C: {"execution_cache": {"entries", "bytes", "max_bytes"}, "node_state_store": {"modules",
 * "bytes", "max_modules", "max_bytes"}, "devices": [{"device": machine's name, "held_bytes",
 * "context_bytes"}]}. After CHILD_IDLE_S without a line it ends with status 0. A SIGTERM while
 * nothing runs ends it too.
 *
 * One run at a time, one thread calls. Requirements R1, R6, R12, R17, B6, S1, S2, O2, O3.
 */
#ifndef CHILD_CHILD_H
#define CHILD_CHILD_H

enum { CHILD_IDLE_S = 600 };

struct child_options {
    const char *dir; /* absolute */
    int control_fd;  /* -1: one run, then the end */
    int idle_s;      /* 0: CHILD_IDLE_S */
};
/* Returns the exit status of the (last) run. Installs handlers for SIGTERM and SIGINT. */
int child_work(const struct child_options *o);

#endif
