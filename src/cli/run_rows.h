/* run_rows.h - runs as rows of a table (remote.h: table_text), from the rows of GET /api/runs. */
#ifndef CLI_RUN_ROWS_H
#define CLI_RUN_ROWS_H

#include "base/json.h"
#include "base/str.h"

void run_rows_head(struct str *rows);
void run_row(struct str *rows, const json_t *row);
/* "gpu-box cuda:0,cuda:1", or the queue it waits in. */
void run_where(struct str *rows, const json_t *row);
/* "6.0 GiB (measured, 3f2a91bc) raised": the budget and where it came from (R18). */
void run_budget(struct str *rows, const json_t *row);

#endif
