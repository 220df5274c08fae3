/* json.h - jansson with our errors: strict reading, typed getters, numbers that JSON lacks.
 *
 * Documents are jansson's json_t; its reference counting applies (json_decref). Duplicate keys and
 * nesting past 512 are refused. Doubles that JSON cannot hold are written as the strings "NaN",
 * "Infinity" and "-Infinity".
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/err.h"
#include "base/str.h"

#include <jansson.h>
#include <stdint.h>

/* `what` names the text in errors ("graph.json"). */
enum status
json_parse(const char *text, size_t n, const char *what, json_t **out, struct err *e) NODISCARD;
enum status
json_read_file(const char *path, size_t limit_bytes, json_t **out, struct err *e) NODISCARD;

/* The member, or the fallback when it is absent or of another type. Strings are borrowed. */
const char *json_get_str(const json_t *object, const char *key, const char *fallback);
int64_t json_get_i64(const json_t *object, const char *key, int64_t fallback);
double json_get_f64(const json_t *object, const char *key, double fallback);
bool json_get_bool(const json_t *object, const char *key, bool fallback);

/* Setters that take plain values. */
void json_put_str(json_t *object, const char *key, const char *value); /* NULL becomes null */
void json_put_i64(json_t *object, const char *key, int64_t value);
void json_put_f64(json_t *object, const char *key, double value);
void json_put_bool(json_t *object, const char *key, bool value);
void json_put(json_t *object, const char *key, json_t *value); /* takes the reference */
json_t *json_f64(double value); /* a new reference; NaN and infinities as strings */

/* The document as text (one line, or indented by 2); freed by mem_free. */
char *json_text(const json_t *value, bool indented);
/* Adds an HTML page to `out`, with the document in place of the "{}" behind `mark`, which the page
 * has: the end of the opening tag of a script element ("id=\"data\">"). */
void json_into_page(const char *page, const char *mark, const json_t *value, struct str *out);

#endif
