/* page.h - the memory bill as one self-contained HTML page.
 *
 * The page (page.html, embedded when the program is built) holds the document as JSON and draws it
 * in the browser: no server, no other file, nothing from the network. It follows the reader's light
 * or dark setting.
 */
#ifndef PLAN_PAGE_H
#define PLAN_PAGE_H

#include "base/json.h"
#include "base/str.h"

/* `plan`: run_plan_json with timelines, and "map" in its programs where storage is to be drawn. */
void page_text(const json_t *plan, struct str *out);

#endif
