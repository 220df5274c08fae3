/* function.h - a saved graph as a function: what it takes and gives, and a call's arguments.
 *
 * The nodes GraphInput and GraphOutput of a graph (not those within its blocks) are its signature.
 * A call's arguments are put into the graph, as the parameter `value` of their nodes; results are
 * what the run says of the outputs' nodes (runner/function_nodes.c).
 */
#ifndef SERVER_FUNCTION_H
#define SERVER_FUNCTION_H

#include "base/json.h"

/* Why a call fails: its code and HTTP status. */
enum function_fault {
#define FAULT(name, code, http) FAULT_##name,
#include "server/function_faults.def"
#undef FAULT
    FAULT_COUNT
};
const char *function_fault_code(enum function_fault f);
int function_fault_http(enum function_fault f);

/* {"graph", "inputs": [{name, type, required, default, description}], "outputs": [{name, type,
 * description}], "problems": [text]}: a new reference, whatever the document is. */
json_t *function_contract(const json_t *graph, const char *name);

/* What keeps a call from being a run. `details` (a new array) lists the particulars. */
struct function_refusal {
    enum function_fault fault;
    char message[256];
    json_t *details; /* may be NULL */
};
/* Whether the graph can be called at all; false fills the refusal. */
bool function_check(const json_t *graph, const json_t *contract, struct function_refusal *why);
/* Checks the arguments by the contract and puts them into the graph. */
bool function_bind(
    json_t *graph, const json_t *contract, const json_t *inputs, struct function_refusal *why);
/* Collects outputs of a run's result by name. False: one is missing or cannot be JSON. */
bool function_outputs(
    const json_t *graph, const json_t *result, json_t **outputs, struct function_refusal *why);

#endif
