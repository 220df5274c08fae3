/* slot.h - who computes on a device outside of any queue: runs in the foreground hold a place in a
 * file per device, and whoever starts queued runs looks there first.
 *
 *     struct slot s;
 *     TRY(slot_hold(&s, device_slot_name(d), e)); ... slot_release(&s);          a foreground run
 *     if (slot_held(uuid)) ... the card is not free: wait                         an agent
 *
 * FORMAT of SNUG_HOME/slots/NAME.slot (NAME: the card's UUID, "cpu"): empty; place i is held by
 * whoever has the lock of byte i (base/shared.h), so the end of a process, however it comes, gives
 * it back.
 */
#ifndef MEM_SLOT_H
#define MEM_SLOT_H

#include "base/shared.h"
#include "mem/device.h"

enum { SLOT_PLACES = 64 };

struct slot {
    struct shared file;
    int64_t at;
};
/* The device's name for slot_hold and slot_held: its UUID, else its id. */
const char *slot_name(const struct device *d);
/* ST_FULL when SLOT_PLACES runs are on the device already. */
enum status slot_hold(struct slot *s, const char *name, struct err *e) NODISCARD;
void slot_release(struct slot *s); /* harmless when nothing is held */
/* Whether a run in the foreground is on the device. */
bool slot_held(const char *name);

#endif
