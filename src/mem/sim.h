/* sim.h - simulated cards: what they are called, and the memory that all processes share on one.
 *
 * DESCRIPTION  NAME:SIZE:smXX[:uuid=U][:context=650MiB][:others=3GiB], cards separated by commas.
 *   SIZE includes contexts. context: of each process, 650 MiB where not given, but at most a
 *   quarter of the card. others: memory that somebody else uses (processes that say different
 *   things count the most of them). uuid: letters, digits, "-", "_"
 *   and "."; where not given it follows from the place in the list, name, size and capability, so
 *   that every process that is given the same text means the same card.
 *
 * FORMAT of DIR/UUID.card (numbers are of the machine's byte order)
 *      0  "snugcard", version u32, slots u32, capacity i64, check u64; 64 bytes
 *   64+64i  slot i: pid i64, context i64, held i64, others i64, check u64; 64 bytes
 * Locks (base/shared.h): byte 0 while the file is read or changed, byte 1 for who is next; byte 64+64i as long as slot i is
 * somebody's. A slot whose lock is free is nobody's, whatever it says: what a dead process held is
 * free again, also when it was killed in the middle of a write. A file that is empty, cut off or
 * damaged is made anew when nobody has a slot, and is ST_CORRUPT otherwise.
 *
 * INVARIANTS
 *  1. Contexts + held bytes of the live slots never pass the capacity, and nothing is taken that
 *     would pass it together with `others`: the most that this process or a live slot says.
 *  2. A slot is written only by its owner, and only under the lock of byte 0.
 *
 * Functions of one sim_card may be called by several threads at once.
 */
#ifndef MEM_SIM_H
#define MEM_SIM_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SIM_CARDS_MAX = 64, SIM_SLOTS = 128, SIM_VERSION = 1 };

struct sim_spec {
    char name[96], uuid[80];
    int64_t capacity_bytes, context_bytes, others_bytes;
    int compute_capability; /* 89 for sm89 */
};
/* Reads a description of several cards; `what` names it in errors. *n is 0 for an empty text. */
enum status sim_specs_parse(
    const char *text, const char *what, struct sim_spec out[SIM_CARDS_MAX], int *n,
    struct err *e) NODISCARD;

struct sim_card;
/* `dir` is made when the card is first held. Nothing is held yet, and no file is made. */
struct sim_card *sim_card_new(const struct sim_spec *spec, const char *dir);
/* Gives everything back. */
void sim_card_free(struct sim_card *c);

/* Takes a slot, and the context. ST_OOM: no room; ST_INVALID: processes that use the card now
 * give it another size; ST_CORRUPT, ST_IO: the file. Harmless when attached. */
enum status sim_card_attach(struct sim_card *c, struct err *e) NODISCARD;
void sim_card_detach(struct sim_card *c);
/* Holds `bytes` more (ST_OOM: no room), or for negative ones less (never fails). Attached. */
enum status sim_card_charge(struct sim_card *c, int64_t bytes, struct err *e) NODISCARD;

struct sim_use {
    int64_t pid, context_bytes, held_bytes;
    bool own;
};
struct sim_state {
    int64_t capacity_bytes, others_bytes, free_bytes;
    int n; /* processes on the card */
    struct sim_use use[SIM_SLOTS];
};
/* How the card stands now. A card whose file is not there is unused. */
enum status sim_card_look(struct sim_card *c, struct sim_state *out, struct err *e) NODISCARD;

#endif
