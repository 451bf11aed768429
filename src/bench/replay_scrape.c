/* replay_scrape.c: samples of the server's metrics while a run goes on. Called by replay.c. */
#include "bench/replay_inside.h"

#include "bench/adapter.h"

#include <string.h>

enum { SCRAPE_LIMIT = 16 << 20, FAILURES_GIVEN_UP = 5 };

static struct server_sample *new_sample(struct run *run) {
    if (run->n_samples == run->sample_room) {
        uint32_t room = run->sample_room ? 2 * run->sample_room : 64;
        struct server_sample *more = realloc(run->samples, room * sizeof *more);
        if (!more)
            return NULL;
        run->samples = more;
        run->sample_room = room;
    }
    return &run->samples[run->n_samples++];
}

static void take_sample(struct replay *r, const char *text, size_t n, int64_t at) {
    struct server_sample *s = new_sample(r->run);
    if (!s)
        return;
    s->at = replay_unix(r, at);
    adapter_read(r->probe.kind, text, n, s);
}

static void on_data(void *user, int status, const char *bytes, size_t n, int64_t at) {
    struct replay *r = user;
    if (status == 200 && r->scrape.text.n + n < SCRAPE_LIMIT)
        text_append(&r->scrape.text, bytes, n);
}

static void on_ended(void *user, const struct exchange_end *end, int64_t at) {
    struct replay *r = user;
    r->scrape.busy = false;
    if (end->ok && end->status == 200) {
        take_sample(r, r->scrape.text.data, r->scrape.text.n, at);
        r->scrape.failures = 0;
    } else {
        r->scrape.failures++;
    }
}

int64_t replay_scrape(struct replay *r, int64_t now) {
    static const struct exchange_events events = {.data = on_data, .ended = on_ended};
    if (!r->probe.has_metrics || r->o->sample_seconds <= 0 || r->profiling_start == INT64_MIN ||
        r->scrape.failures >= FAILURES_GIVEN_UP)
        return INT64_MAX;
    if (now < r->scrape.next)
        return r->scrape.next;
    int64_t step = (int64_t)(r->o->sample_seconds * 1e9);
    r->scrape.next = r->scrape.next > now - step ? r->scrape.next + step : now + step;
    if (r->scrape.busy)
        return r->scrape.next;
    text_clear(&r->scrape.text);
    r->scrape.busy = client_send(r->client, "/metrics", NULL, 0, &events, r) != NULL;
    return r->scrape.next;
}

void replay_scrape_last(struct replay *r) {
    struct client_text t;
    if (!r->probe.has_metrics || r->profiling_start == INT64_MIN)
        return;
    client_fetch(r->client, "/metrics", NULL, 5, &t);
    if (t.ok && t.status == 200 && t.text)
        take_sample(r, t.text, t.n, client_now());
    free(t.text);
}
