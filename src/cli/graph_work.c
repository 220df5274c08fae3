/* graph_work.c - where a supervisor of runs meets the graph runner. */
#include "cli/commands.h"

supervisor_graph *const graph_work = NULL;
