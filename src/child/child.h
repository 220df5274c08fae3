/* child.h - what runs inside a run's supervised process: the graph of a start_order, and in a warm
 * canvas child one run after another.
 *
 *     exit status = child_work(&(struct child_options){.dir = RUN FOLDER, .control_fd = -1});
 *
 * CONTRACT WITH THE SUPERVISOR (wire/wire.h says what a run folder is)
 *   Before: DIR/start.json is there, of kind "graph", and the event `started` is written. stdout
 *   and stderr go where the supervisor wants the run's output (output.log); the result's document
 *   is not written to them.
 *   Events: the work appends to DIR/events.jsonl through wire/journal.h; nobody else does
 * meanwhile. Stop: SIGTERM or SIGINT; the run ends within a batch and writes its interrupt
 * checkpoint. Why is read from DIR/stop, which whoever asks writes whole before the signal: the
 * code of a cause; without it "agent_stopped". A second signal ends the process at once. End: the
 * last thing done for a run is DIR/result.json, written whole: a run_end. The supervisor fills in
 * exit_code and signal and appends `ended` when the tree is gone; where there is no result.json it
 * makes a run_end of its own. Exit status: 0 done, 1 failed, 3 out of memory, 130 stopped, as `snug
 * run`. Further files: graph.json (as submitted), outputs/ (record/outputs.h), tb/NODE/
 * (TensorBoard).
 *
 * DEVICES (R6)  Where options.target.worker names a worker or "any", the order's cards are the only
 * ones the run sees, as cuda:0, cuda:1, ... in the order given. On "local" the machine's names
 * hold, and the run is on the first device of the order. The budget caps every card before its
 * first allocation (B6).
 *
 * WARM CHILDREN (R1, S5)  With a control_fd (one end of a stream socket pair) the process stays
 * after its run. Lines of JSON from the supervisor:
 *     {"run": DIR}                            execute DIR/start.json, of the same tab
 *     {"evict": "caches" | "weights" | "all", "nodes": [ids]?}    an `eviction` of messages.def
 *     {"exit": true}                          end; so does the end of the stream
 * and to the supervisor:
 *     {"ended": DIR, "exit_code": N, "caches": C}    after result.json of DIR
 *     {"evicted": layers, "caches": C}               after an eviction
 * C: {"execution_cache": {"entries", "max_entries", "bytes", "max_bytes"}, "node_state_store":
 * {"modules", "node_ids", "max_modules", "bytes", "max_bytes"}, "devices": [{"device": machine's
 * name, "held_bytes", "context_bytes"}]}: what it holds between runs; nothing on cards, whose
 * context and memory it gives back at the end of each run. After CHILD_IDLE_S without a line it
 * ends. A SIGTERM while nothing runs ends it too. options.changed_nodes (ids) are run again
 * whatever is kept; without options.weights_persistent (default true here) layers start anew.
 *
 * One run at a time, one thread calls.
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
/* The same as supervisor_graph of src/agent wants it. */
int child_graph(const char *dir, int control_fd);

#endif
