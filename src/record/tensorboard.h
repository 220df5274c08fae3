/* tensorboard.h - TensorBoard event files: scalars of a run as TensorBoard reads them.
 *
 *     TRY(tensorboard_open(&t, dir, e)); dir/events.out.tfevents.<sec>.<host>.<pid>.<8 hex>
 *     tensorboard_scalar(t, "train_loss", 3, 0.25); ...   a write error is kept until close
 *     TRY(tensorboard_close(t, e));
 *
 * FORMAT  TFRecord: length u64, masked CRC-32C of the length u32, data, masked CRC-32C of the data
 * u32, all little-endian. The mask: ((crc >> 15) | (crc << 17)) + 0xa282ead8. data is an Event of
 * protocol buffers: 1 wall_time double, 2 step int64, 3 file_version string ("brain.Event:2", in
 * the first record), 5 summary {1 value {1 tag string, 2 simple_value float}}.
 *
 * NaN and infinities are left out. Records reach the file at the latest TENSORBOARD_FLUSH_S after
 * they were made, at the next scalar or flush.
 */
#ifndef RECORD_TENSORBOARD_H
#define RECORD_TENSORBOARD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { TENSORBOARD_FLUSH_S = 5 };

/* CRC-32C (Castagnoli, RFC 3720), and as TFRecord masks it. "123456789" has 0xe3069283. */
uint32_t crc32c(const void *data, size_t n);
uint32_t crc32c_masked(const void *data, size_t n);

struct tensorboard;
enum status tensorboard_open(struct tensorboard **out, const char *dir, struct err *e) NODISCARD;
const char *tensorboard_path(const struct tensorboard *t);
void tensorboard_scalar(struct tensorboard *t, const char *tag, int64_t step, double value);
void tensorboard_flush(struct tensorboard *t);
/* Frees t; the first error of all its writes. NULL is fine. */
enum status tensorboard_close(struct tensorboard *t, struct err *e) NODISCARD;

#endif
