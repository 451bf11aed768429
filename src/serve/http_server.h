/* http_server.h: life of the transport: listening, running, draining. Called by server.c and by
 * tests; endpoints use http.h alone. */
#ifndef WEIR_SERVE_HTTP_SERVER_H
#define WEIR_SERVE_HTTP_SERVER_H

#include "serve/server.h"

/* Creates loop, workers and keys and binds the address, so that a taken port is found before a
 * checkpoint is read; connections are refused until http_listen. `config` is borrowed. */
weir_status http_open(const struct serve_config *config, struct http **out, weir_error *err);
weir_status http_listen(struct http *h, weir_error *err);
uint16_t http_port(const struct http *h);

/* Routes with `admits` answer 503 until this is called. */
void http_set_ready(struct http *h);
bool http_is_ready(const struct http *h); /* ready and not draining */

/* Serves until http_stop, or until a drain has come to its end. Call once. */
void http_run(struct http *h);
/* Leaves http_run at the end of this loop turn. */
void http_stop(struct http *h);
/* No new work (503, Retry-After); http_run returns when the last request has ended, or after
 * `seconds`, when the rest has been failed with an error. */
void http_drain(struct http *h, double seconds);
/* First SIGTERM or SIGINT: calls fn on the loop. Second: ends the process at once, 128 + signal. */
void http_on_signal(struct http *h, void (*fn)(void *arg), void *arg);

/* Ends every reply (their closed callbacks run), finishes every job, closes every connection.
 * http_close frees the rest. */
void http_shut(struct http *h);
void http_close(struct http *h);

/* Requests of `admits` routes that have not ended. */
size_t http_in_flight(const struct http *h);
size_t http_connections(const struct http *h);
/* Ends the running request with this id, when `caller` is an admin or came with the same key.
 * Whether it was there is nobody's business: nothing is returned. */
void http_abort(struct http *h, const char *id, const struct http_request *caller);

/* Called when an answer has been written or given up: status 499 = client gone. `handler` is the
 * path of its route, "none" without one. */
typedef void http_observer(void *arg, const char *method, const char *handler, int status,
                           double seconds);
void http_on_answer(struct http *h, http_observer *fn, void *arg);

/* Calls fn for each method of each route. */
typedef void http_route_visitor(void *arg, const char *method, const char *path);
void http_each_route(const struct http *h, http_route_visitor *fn, void *arg);

#endif
