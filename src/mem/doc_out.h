/* doc_out.h - writes one document as JSON or as a pickle, value by value, to a stream.
 *
 * The same calls give both forms: maps, lists, pairs and plain values. A pickle has protocol 2 and
 * no global; equal texts exist once in it, and what the caller marks (doc_out_mark) can be named
 * again (doc_out_again), as Python's own pickler does with equal objects. JSON has no such thing.
 * Invalid UTF-8 is replaced. Errors of the stream are the caller's (ferror).
 *
 * FORMAT of pickles: PROTO 2; EMPTY_DICT MARK .. SETITEMS; EMPTY_LIST MARK .. APPENDS; TUPLE2;
 * BINUNICODE; BININT1, BININT2, BININT, LONG1; BINFLOAT; NEWTRUE, NEWFALSE; BINPUT, LONG_BINPUT,
 * BINGET, LONG_BINGET; STOP. Source: Python's Lib/pickletools.py.
 */
#ifndef MEM_DOC_OUT_H
#define MEM_DOC_OUT_H

#include "mem/history_int.h"

#include <stdio.h>

enum { DOC_DEPTH_MAX = 16 };

struct doc_out {
    FILE *f;
    bool pickle;
    int depth;
    bool some[DOC_DEPTH_MAX]; /* JSON: something stands before */
    bool after_key;
    struct intern texts;     /* pickle */
    VEC(uint32_t) text_memo; /* by text: its memo + 1; 0: not written yet */
    uint32_t memo_n;
};

void doc_out_begin(struct doc_out *d, FILE *f, bool pickle);
void doc_out_end(struct doc_out *d);

void doc_map(struct doc_out *d);
void doc_map_end(struct doc_out *d);
void doc_list(struct doc_out *d);
void doc_list_end(struct doc_out *d);
void doc_key(struct doc_out *d, const char *key); /* the value follows */
void doc_text(struct doc_out *d, const char *s);
void doc_int(struct doc_out *d, int64_t v);
void doc_uint(struct doc_out *d, uint64_t v);
void doc_real(struct doc_out *d, double v);
void doc_bool(struct doc_out *d, bool v);
void doc_pair(struct doc_out *d, uint64_t a, uint64_t b); /* a tuple; JSON: a list */

/* Pickles only: a number for the value written last, and that value once more. */
uint32_t doc_out_mark(struct doc_out *d);
void doc_out_again(struct doc_out *d, uint32_t mark);

#endif
