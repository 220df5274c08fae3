/* snapshot_page.h - one self-contained page about a snapshot: the verdict, memory over the events,
 * the segments at the decisive moment and at the end, and who holds what.
 *
 * However long the recording, the page stays below 5 MB: curves are decimated exactly (timeline.h);
 * blocks of a segment that are thinner than a line of the drawing are drawn together.
 */
#ifndef DOCTOR_SNAPSHOT_PAGE_H
#define DOCTOR_SNAPSHOT_PAGE_H

#include "doctor/study.h"

#include "base/json.h"

/* `document` is what snapshot_report_document gave. Appends the page. */
void snapshot_page(
    const struct study *x, const json_t *document, const char *title, struct str *out);
/* The drawing's data alone, for tests. */
json_t *snapshot_page_data(const struct study *x);

#endif
