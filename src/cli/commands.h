/* commands.h - the functions of the commands, and what they share: each answers once and gives the
 * exit status of the program. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "base/json.h"
#include "cli/args.h"
#include "runner/run.h"

#define COMMAND(name, function, most, arguments, options, about, help)                             \
    int function(const struct args *a);
#include "cli/commands.def"
#undef COMMAND

/* Options of `run` and `plan` that concern the run itself. */
struct run_options run_options_of(const struct args *a);
/* Before a command runs: GRAPH "-" becomes a file of memory with what stdin has, and --timeout of
 * commands that plan begins to count; when it is up the program answers and ends (E2). */
enum status commands_begin(struct args *a, struct err *e) NODISCARD;
/* graph_prepare with the command's GRAPH and --set. */
enum status graph_of(const struct args *a, struct graph **out, struct err *e) NODISCARD;

/* The ST_OOM of a run becomes a NodeOOMError with advice; its document is "oom" of `d` (NULL: no
 * document). */
void explain_oom(const struct args *a, const struct run *r, json_t *d, struct err *e);

/* `snug plan --problem`. */
int cmd_plan_problem(const struct args *a);

#endif
