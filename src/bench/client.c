/* client.c: exchanges on libcurl's multi interface. The waiting is in client_loop.c.
 * Called by replay.c. Invariant that bites: libcurl may not be entered again from within its
 * callbacks, so callbacks of exchanges that end are called from finish_all alone, and a cancelled
 * exchange is taken out of the multi handle before it is told. */
#include "bench/client_inside.h"

#include <string.h>
#include <strings.h>
#include <time.h>

enum { TEXT_LIMIT = 64 << 20 };
#define LOOK_AGE 50000 /* ns; what came within it after a look is stamped that much too early */

int64_t client_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* When the last of the bytes that a read has brought so far came in. */
static int64_t arrival_of(const struct reading *r, int64_t now) {
    if (r->bytes <= r->first.bytes)
        return r->first.at;
    if (r->bytes <= r->newest.bytes)
        return r->newest.at;
    return now - r->looked > LOOK_AGE ? now : r->looked;
}

int64_t client_stamp(struct client *c, struct exchange *x, size_t bytes) {
    bool is_read = x->fd >= 0 && x->fd == c->reading;
    int64_t now = client_now();
    if (!is_read) {
        int64_t at = client_take_edge(c, x->fd);
        return at < x->last ? now : at;
    }
    /* libcurl hands over the first piece of a read even where nothing of it was seen to wait: the
     * wait ended for it. */
    int64_t at = c->read.bytes == 0 ? c->read.first.at : 0;
    c->read.bytes += (int64_t)bytes;
    at = at ? at : arrival_of(&c->read, now);
    at = at < x->last ? c->waited : at;
    return at < x->last ? now : at;
}

/* Bytes of a chunk's size line and end. */
static size_t framing(size_t n) {
    size_t bytes = 4;
    for (; n > 0; n >>= 4)
        bytes++;
    return bytes;
}

static int on_prereq(void *user, char *remote_ip, char *local_ip, int remote_port, int local_port) {
    struct exchange *x = user;
    x->resent = x->sent != 0;
    x->is_chunked = false; /* an answer that a closed connection cut off may have been */
    int64_t now = client_now();
    if (!x->sent) {
        x->sent = x->last = now;
        if (x->events.sent)
            x->events.sent(x->user, now);
    }
    return CURL_PREREQFUNC_OK;
}

static void learn_status(struct exchange *x) {
    long status = 0;
    x->client->api->easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    x->status = (int)status;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *user) {
    struct exchange *x = user;
    static const char chunked[] = "transfer-encoding: chunked";
    x->last = client_stamp(x->client, x, size * n);
    x->is_chunked |= size * n >= sizeof chunked && !strncasecmp(bytes, chunked, sizeof chunked - 1);
    /* An interim answer (100, 103) is none: its status line is followed by another. */
    if (size * n > 9 && !memcmp(bytes, "HTTP/", 5)) {
        learn_status(x);
        if (x->status >= 200 && x->events.head)
            x->events.head(x->user, x->status, x->last);
    }
    return size * n;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user) {
    struct exchange *x = user;
    x->last = client_stamp(x->client, x, size * n + (x->is_chunked ? framing(size * n) : 0));
    if (!x->status)
        learn_status(x);
    if (x->events.data && size * n > 0)
        x->events.data(x->user, x->status, bytes, size * n, x->last);
    return x->refused ? 0 : size * n; /* libcurl ends a transfer that not all was taken of */
}

void client_refuse(struct exchange *x, const char *why) {
    x->refused = true;
    snprintf(x->why, sizeof x->why, "%s", why);
}

/* Which of the few words that results know. */
static const char *type_of(CURLcode code, const struct exchange *x) {
    switch ((int)code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: return "connect";
    case CURLE_OPERATION_TIMEDOUT: return x->sent ? "timeout" : "connect";
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: return "closed";
    }
    return "protocol";
}

static void settings(struct client *c, struct exchange *x, const char *body, size_t n) {
#define SET(OPTION, VALUE) c->api->easy_setopt(x->easy, OPTION, VALUE)
    SET(CURLOPT_PRIVATE, x);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROXY, ""); /* the server is measured, not what the environment puts before it */
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    SET(CURLOPT_PREREQFUNCTION, on_prereq);
    SET(CURLOPT_PREREQDATA, x);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, x);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, x);
    SET(CURLOPT_ERRORBUFFER, x->fault);
    SET(CURLOPT_HTTPHEADER, c->headers);
    SET(CURLOPT_URL, x->url);
    if (c->connect_ms > 0)
        SET(CURLOPT_CONNECTTIMEOUT_MS, (long)c->connect_ms);
    if (c->ca_file)
        SET(CURLOPT_CAINFO, c->ca_file);
    if (body) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
        SET(CURLOPT_POSTFIELDS, body);
    } else {
        SET(CURLOPT_HTTPGET, 1L);
    }
#undef SET
}

struct exchange *client_send(struct client *c, const char *path, const char *body, size_t n,
                             const struct exchange_events *events, void *user) {
    size_t bytes = strlen(c->url) + strlen(path) + 1;
    struct exchange *x = calloc(1, sizeof *x + bytes);
    if (!x)
        return NULL;
    x->client = c;
    x->events = *events;
    x->user = user;
    x->last = client_now();
    x->fd = -1;
    snprintf(x->url, bytes, "%s%s", c->url, path);
    x->easy = c->n_idle > 0 ? c->idle[--c->n_idle] : c->api->easy_init();
    if (!x->easy) {
        free(x);
        return NULL;
    }
    settings(c, x, body, n);
    x->next = c->exchanges;
    if (c->exchanges)
        c->exchanges->back = &x->next;
    x->back = &c->exchanges;
    c->exchanges = x;
    c->n_streams++;
    /* Looks at the server's metrics run beside the load and are none. */
    c->n_posts += body != NULL;
    x->is_post = body != NULL;
    if (c->n_posts > c->most_streams)
        c->most_streams = c->n_posts;
    if (c->api->multi_add_handle(c->multi, x->easy) != CURLM_OK) {
        client_exchange_free(c, x);
        return NULL;
    }
    c->must_kick = true;
    return x;
}

/* Gives the handle back for the next exchange; its connection stays in the pool. */
void client_exchange_free(struct client *c, struct exchange *x) {
    c->api->multi_remove_handle(c->multi, x->easy);
    if (c->n_idle < IDLE_HANDLES) {
        c->api->easy_reset(x->easy);
        c->idle[c->n_idle++] = x->easy;
    } else {
        c->api->easy_cleanup(x->easy);
    }
    *x->back = x->next;
    if (x->next)
        x->next->back = x->back;
    c->n_streams--;
    c->n_posts -= x->is_post;
    free(x);
}

static void tell_end(struct client *c, struct exchange *x, struct exchange_end *end, int64_t at) {
    long made = 0;
    c->api->easy_getinfo(x->easy, CURLINFO_NUM_CONNECTS, &made);
    end->status = x->status;
    end->connections = (uint32_t)(made > 0 ? made : 0);
    end->resent = x->resent;
    c->ended++;
    if (x->events.ended)
        x->events.ended(x->user, end, at);
    client_exchange_free(c, x);
}

void client_cancel(struct client *c, struct exchange *x) {
    struct exchange_end end = {
        .was_cancelled = true, .type = "cancelled", .message = "the run was ended"};
    tell_end(c, x, &end, client_now());
}

void client_finish_all(struct client *c) {
    CURLMsg *m;
    int left;
    while ((m = c->api->multi_info_read(c->multi, &left))) {
        struct exchange *x = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        c->api->easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&x);
        struct exchange_end end = {.ok = code == CURLE_OK, .type = "", .message = ""};
        if (!end.ok) {
            end.type = x->refused ? "protocol" : type_of(code, x);
            end.message = x->refused    ? x->why
                          : x->fault[0] ? x->fault
                                        : c->api->easy_strerror(code);
        }
        /* The end was seen with the socket's last bytes; trouble without any is of now. */
        tell_end(c, x, &end, end.ok ? client_stamp(c, x, 0) : client_now());
    }
}

void client_check_limits(struct client *c, int64_t now) {
    for (struct exchange *x = c->exchanges, *next; x; x = next) {
        next = x->next;
        char text[96];
        struct exchange_end end = {.type = "timeout", .message = text};
        if (x->sent && c->silence > 0 && now - x->last > c->silence)
            snprintf(text, sizeof text, "nothing came for %.3f s", (double)(now - x->last) * 1e-9);
        else if (x->sent && c->whole > 0 && now - x->sent > c->whole)
            snprintf(text, sizeof text, "not done after %.3f s", (double)(now - x->sent) * 1e-9);
        else
            continue;
        tell_end(c, x, &end, now);
        next = c->exchanges; /* the callback may have ended or begun others */
    }
}

const char *client_url(const struct client *c) {
    return c->url;
}

bool client_has_key(const struct client *c) {
    return c->has_key;
}

uint32_t client_most_streams(const struct client *c) {
    return c->most_streams;
}

struct reservoir *client_turn_lengths(struct client *c) {
    return &c->turns;
}

/* One exchange waited for. */
struct fetch {
    struct client_text *out;
    bool ended;
};

static void fetch_data(void *user, int status, const char *bytes, size_t n, int64_t at) {
    struct client_text *t = ((struct fetch *)user)->out;
    if (t->n + n > TEXT_LIMIT)
        return;
    char *grown = realloc(t->text, t->n + n + 1);
    if (!grown)
        return;
    memcpy(grown + t->n, bytes, n);
    t->text = grown;
    t->n += n;
    t->text[t->n] = 0;
}

static void fetch_ended(void *user, const struct exchange_end *end, int64_t at) {
    struct fetch *f = user;
    f->out->status = end->status;
    f->out->ok = end->ok;
    snprintf(f->out->message, sizeof f->out->message, "%s", end->message);
    f->ended = true;
}

void client_fetch(struct client *c, const char *path, const char *body, double seconds,
                  struct client_text *out) {
    static const struct exchange_events events = {.data = fetch_data, .ended = fetch_ended};
    struct fetch f = {.out = out};
    *out = (struct client_text){0};
    struct exchange *x = client_send(c, path, body, body ? strlen(body) : 0, &events, &f);
    int64_t until = client_now() + (int64_t)(seconds * 1e9);
    while (x && !f.ended && client_now() < until)
        client_turn(c, until);
    if (x && !f.ended) {
        client_cancel(c, x);
        snprintf(out->message, sizeof out->message, "no answer within %g s", seconds);
    }
    if (!x)
        snprintf(out->message, sizeof out->message, "no memory");
}
