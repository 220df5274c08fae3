/* scaler.c - torch.cuda.amp.GradScaler's rule: halve on overflow, double after a good stretch. */
#include "train/scaler.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum { SCALE_LOW = 16 }; /* at or below it, skips point at the gradients (P10) */

struct scaler scaler_off(void)
{
    return (struct scaler){
        .scale = 1,
        .growth_factor = 2,
        .backoff_factor = 0.5,
        .growth_interval = 2000,
        .reported_scale = 1};
}

struct scaler scaler_new(double initial, bool fixed, int64_t growth_interval)
{
    struct scaler s = scaler_off();
    s.enabled = true;
    s.fixed = fixed;
    s.scale = s.reported_scale = initial > 0 ? initial : 65536;
    if (growth_interval > 0)
        s.growth_interval = growth_interval;
    return s;
}

enum status scaler_unscale(struct scaler *s, struct err *e)
{
    if (!s->enabled)
        return ST_OK;
    if (s->unscaled)
        return err_set(e, ST_INTERNAL, "the gradients of this window have been unscaled already");
    s->unscaled = true;
    return ST_OK;
}

/* The scale is multiplied into float32 values: it stays a finite, normal float32. */
static void set_scale(struct scaler *s, double scale)
{
    if (scale <= (double)FLT_MAX && scale >= (double)FLT_MIN)
        s->scale = scale;
}

bool scaler_update(struct scaler *s, bool found_inf)
{
    s->unscaled = false;
    if (!s->enabled)
        return found_inf;
    if (found_inf) {
        s->skipped++;
        s->recent_skips++;
        s->growth_tracker = 0;
        if (!s->fixed)
            set_scale(s, s->scale * s->backoff_factor);
        return true;
    }
    if (!s->fixed && ++s->growth_tracker >= s->growth_interval) {
        set_scale(s, s->scale * s->growth_factor);
        s->growth_tracker = 0;
    }
    return false;
}

json_t *scaler_state(const struct scaler *s)
{
    json_t *state = json_object();
    json_put_f64(state, "scale", s->scale);
    json_put_f64(state, "growth_factor", s->growth_factor);
    json_put_f64(state, "backoff_factor", s->backoff_factor);
    json_put_i64(state, "growth_interval", s->growth_interval);
    json_put_i64(state, "_growth_tracker", s->growth_tracker);
    return state;
}

enum status scaler_restore(struct scaler *s, const json_t *state, struct err *e)
{
    /* What a scaler that was off saves; losing the state is not fatal (P8). */
    if (!s->enabled || !state || json_is_null(state) ||
        (json_is_object(state) && json_object_size(state) == 0))
        return ST_OK;
    double scale = json_get_f64(state, "scale", 0);
    double growth = json_get_f64(state, "growth_factor", s->growth_factor);
    double backoff = json_get_f64(state, "backoff_factor", s->backoff_factor);
    int64_t interval = json_get_i64(state, "growth_interval", s->growth_interval);
    int64_t tracker = json_get_i64(state, "_growth_tracker", 0);
    if (!(scale >= (double)FLT_MIN && scale <= (double)FLT_MAX))
        return err_set(
            e, ST_CORRUPT, "\"scale\" of the saved gradient scaler is not a positive number");
    if (!(growth > 1 && growth <= (double)FLT_MAX) || !(backoff > 0 && backoff < 1))
        return err_set(
            e, ST_CORRUPT,
            "\"growth_factor\" %g and \"backoff_factor\" %g of the saved gradient scaler cannot be "
            "used",
            growth, backoff);
    if (interval < 1 || tracker < 0)
        return err_set(
            e, ST_CORRUPT,
            "\"growth_interval\" or \"_growth_tracker\" of the saved gradient scaler is out of "
            "range");
    if (!s->fixed)
        s->scale = scale;
    s->growth_factor = growth;
    s->backoff_factor = backoff;
    s->growth_interval = interval;
    s->growth_tracker = tracker;
    s->reported_scale = s->scale;
    return ST_OK;
}

static const char *say(const struct scaler *s, bool *bad, char *buf, size_t cap)
{
    if (s->recent_skips && s->scale <= SCALE_LOW) {
        *bad = true;
        (void)snprintf(
            buf, cap,
            "loss scale %g after %lld skipped updates: the gradients are likely exploding; look at "
            "the learning rate, at clipping, at abnormal samples, then at unstable structure",
            s->scale, (long long)s->recent_skips);
        return buf;
    }
    if (s->scale > s->reported_scale) {
        (void)snprintf(
            buf, cap, "loss scale rose from %g to %g: healthy", s->reported_scale, s->scale);
        return buf;
    }
    if (!s->recent_skips)
        return NULL;
    if (s->fixed)
        (void)snprintf(
            buf, cap, "%lld updates skipped at the fixed loss scale %g", (long long)s->recent_skips,
            s->scale);
    else
        (void)snprintf(
            buf, cap, "loss scale %g after %lld skipped updates: finding its level", s->scale,
            (long long)s->recent_skips);
    return buf;
}

const char *scaler_health(struct scaler *s, bool *bad, char *buf, size_t cap)
{
    *bad = false;
    const char *said = s->enabled ? say(s, bad, buf, cap) : NULL;
    s->recent_skips = 0;
    s->reported_scale = s->scale;
    return said;
}
