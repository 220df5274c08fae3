/* graph_files.h - saved graphs: a file each in one folder, found by file name or by their own name.
 *
 * A graph's file is "<name>.json", every character that is no letter, digit, "-" or "_" (of any
 * script) replaced by "_". Secrets are blank in it; keys that this program does not know stay.
 */
#ifndef SERVER_GRAPH_FILES_H
#define SERVER_GRAPH_FILES_H

#include "base/json.h"

/* "My_graph.json" of "My graph"; false for a name without any character, or too long. */
bool graph_file_of(const char *name, char out[256]);
/* The graph's file: `name` is a file's ("My_graph.json", "My_graph") or a graph's ("My graph").
 * ST_NOT_FOUND; ST_CONFLICT where several graphs have that name. `file` (may be NULL) gets the
 * file's name. */
enum status graph_files_find(
    const char *dir, const char *name, char path[1024], char file[256], struct err *e) NODISCARD;
/* The document of such a graph; a new reference. */
enum status
graph_files_load(const char *dir, const char *name, json_t **out, struct err *e) NODISCARD;
/* [{"name", "file", "modified"}], by name. A new reference. */
json_t *graph_files_list(const char *dir);
/* Stores the document, without its keys "file" and "overwrite". Where `overwrite` is false and the
 * file is there: ST_CONFLICT, and file and name are filled in. */
enum status graph_files_save(
    const char *dir, const json_t *document, const char *file_wanted, bool overwrite,
    char file[256], struct err *e) NODISCARD;
/* Gives a graph another name, and its file with it. */
enum status graph_files_rename(
    const char *dir, const char *from, const char *to, char file[256], struct err *e) NODISCARD;
enum status
graph_files_delete(const char *dir, const char *name, char file[256], struct err *e) NODISCARD;

#endif
