/* cmd_child.c - `snug child`: the supervisor of one run, for agents alone. */
#include "agent/supervisor.h"
#include "child/child.h"
#include "cli/answer.h"
#include "cli/commands.h"

#include <stdio.h>

int cmd_child(const struct args *a)
{
    const struct option_value *dir = &a->option[OPTION_DIR], *fd = &a->option[OPTION_CONTROL_FD];
    char copy[1024]; /* the command line is overwritten by the process's title */
    struct err e;
    int n = snprintf(copy, sizeof copy, "%s", dir->given ? dir->text : "");
    if (!dir->given || copy[0] != '/' || n >= (int)sizeof copy)
        return answer_end(
            a->json, err_set(&e, ST_USAGE, "--dir names an agent's run folder by its whole path"),
            &e, NULL);
    supervisor_scrub_environment();
    return supervisor_run(&(struct supervisor_options){
        .dir = copy, .graph = child_graph, .control_fd = fd->given ? (int)fd->number : -1});
}
