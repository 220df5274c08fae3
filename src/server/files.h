/* files.h - files that users keep on the server: found inside their folder or not at all.
 *
 * A name is relative to its folder and may have parts ("runs/a/model.pt"); no name, "..", or
 * symbolic link leads out of the folder. Requirement H3.
 */
#ifndef SERVER_FILES_H
#define SERVER_FILES_H

#include "base/json.h"

#include <stddef.h>

/* The real path of a regular file below `dir`: ST_NOT_FOUND where there is none, or where it lies
 * outside. */
enum status files_find(const char *dir, const char *name, char path[1024], struct err *e) NODISCARD;
/* [{"filename", "size", "modified"}] of all files below `dir` whose ending is among `endings`
 * (".pt .bin"; NULL: any), by name; at most 10000, 8 folders deep. A new reference. */
json_t *files_list(const char *dir, const char *endings);
bool files_has_ending(const char *name, const char *endings);
/* Puts a complete file (q->upload) into dir under a plain name, in place of one that is there. */
enum status
files_place(const char *from, const char *dir, const char *name, struct err *e) NODISCARD;
/* "image/png"; "application/octet-stream" where the ending says nothing. */
const char *files_type(const char *name);

#endif
