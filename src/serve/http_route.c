/* http_route.c: who gets a request, and who may send it. Called by the connection when a header is
 * complete, so that what is refused is refused before its body costs memory.
 * With keys set everything but the routes marked open needs one, unknown paths too: a path that a
 * router and a key check spell differently can then reach nothing. */
#include "serve/http_inside.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void http_route(struct http *h, const struct http_route *route) {
    struct route_node *node = calloc(1, sizeof *node);
    WEIR_ASSERT(node != NULL);
    node->route = *route;
    const char *star = strchr(route->path, '*');
    node->prefix = star ? (size_t)(star - route->path) : SIZE_MAX;
    struct route_node **at = &h->routes;
    while (*at)
        at = &(*at)->next;
    *at = node;
}

void routes_free(struct http *h) {
    while (h->routes) {
        struct route_node *node = h->routes;
        h->routes = node->next;
        free(node);
    }
}

void http_each_route(const struct http *h, http_route_visitor *fn, void *arg) {
    for (const struct route_node *node = h->routes; node; node = node->next)
        for (enum http_method m = HTTP_GET; m <= HTTP_PATCH; m = (enum http_method)(m << 1))
            if (node->route.method & m)
                fn(arg, method_name(m), node->route.path);
}

static bool path_matches(const struct route_node *node, const char *path) {
    if (node->prefix == SIZE_MAX)
        return strcmp(node->route.path, path) == 0;
    return strncmp(node->route.path, path, node->prefix) == 0 && path[node->prefix] != 0;
}

static bool method_matches(const struct http_route *route, enum http_method method) {
    return (route->method & method) || (method == HTTP_HEAD && (route->method & HTTP_GET));
}

/* The first route of this path and method; *methods collects what the path knows. */
static const struct route_node *find(const struct http *h, const char *path,
                                     enum http_method method, unsigned *methods) {
    const struct route_node *found = NULL;
    *methods = 0;
    for (const struct route_node *node = h->routes; node; node = node->next) {
        if (!path_matches(node, path))
            continue;
        *methods |= node->route.method;
        if (!found && method_matches(&node->route, method))
            found = node;
    }
    return found;
}

/* Open only if every route of the path is: a wrong method must not tell more than a right one. */
static enum http_access path_access(const struct http *h, const char *path) {
    enum http_access access = HTTP_OPEN;
    bool known = false;
    for (const struct route_node *node = h->routes; node; node = node->next)
        if (path_matches(node, path)) {
            known = true;
            if (node->route.access > access)
                access = node->route.access;
        }
    return known ? access : HTTP_KEY;
}

static void allow_field(struct http_reply *r, const char *name, unsigned methods) {
    char list[96] = "";
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{HTTP_GET, "GET, HEAD"},
                 {HTTP_POST, "POST"},
                 {HTTP_PUT, "PUT"},
                 {HTTP_PATCH, "PATCH"},
                 {HTTP_DELETE, "DELETE"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (methods & names[i].bit) {
            strcat(list, names[i].name);
            strcat(list, ", ");
        }
    strcat(list, "OPTIONS");
    http_reply_header(r, name, list);
}

/* A preflight carries no key, so it is answered for every path alike. */
static void answer_options(struct http_reply *r, unsigned methods) {
    const struct serve_config *config = r->conn->http->config;
    allow_field(r, "Allow", methods);
    if (config->n_cors_origins > 0 && http_header_get(&r->request, "origin")) {
        allow_field(r, "Access-Control-Allow-Methods", methods);
        const char *wanted = http_header_get(&r->request, "access-control-request-headers");
        http_reply_header(
            r, "Access-Control-Allow-Headers",
            wanted && strlen(wanted) < 2048 ? wanted : "authorization, content-type, x-request-id");
        http_reply_header(r, "Access-Control-Max-Age", "600");
    }
    http_reply_bytes(r, 204, NULL, "", 0);
}

/* application/json with any parameters; a missing type is accepted. */
static bool is_json(const char *type) {
    if (!type)
        return true;
    size_t n = strcspn(type, ";");
    while (n > 0 && (type[n - 1] == ' ' || type[n - 1] == '\t'))
        n--;
    return n == 0 || (n == 16 && strncasecmp(type, "application/json", 16) == 0);
}

/* Key and right. False: refused. */
static bool check_access(struct http_reply *r, enum http_access access) {
    struct http_request *q = &r->request;
    struct auth_result who = auth_check(&r->conn->http->auth, http_header_get(q, "authorization"));
    q->is_admin = who.is_admin;
    if (who.has_key) {
        memcpy(r->key_digest, who.digest, sizeof who.digest);
        q->key_digest = r->key_digest;
    }
    if (access == HTTP_OPEN || (access == HTTP_KEY && who.may_use) || who.is_admin)
        return true;
    if (access == HTTP_ADMIN && who.has_key) {
        http_reply_error(r, 403, NULL, "this endpoint needs the admin key");
        return false;
    }
    http_reply_header(r, "WWW-Authenticate", "Bearer");
    http_reply_error(r, 401, NULL, "missing or wrong API key: send Authorization: Bearer KEY");
    return false;
}

static bool check_admission(struct http_reply *r) {
    struct http *h = r->conn->http;
    if (!r->route->admits || http_is_ready(h))
        return true;
    http_reply_error(r, 503, NULL,
                     h->draining ? "the server is shutting down" : "the model is being loaded");
    return false;
}

bool route_head(struct http_reply *r) {
    struct http *h = r->conn->http;
    struct http_request *q = &r->request;
    unsigned methods;
    const struct route_node *node = find(h, q->path, q->method, &methods);
    if (q->method == HTTP_OPTIONS) {
        answer_options(r, methods);
        return false;
    }
    r->route = node ? &node->route : NULL;
    if (!check_access(r, node ? node->route.access : path_access(h, q->path)))
        return false;
    if (!node && methods == 0 && !http_is_ready(h) && !h->draining) {
        /* The routes of the API come with the model: until then no path is known to be unknown. */
        http_reply_error(r, 503, NULL, "the model is being loaded");
        return false;
    }
    if (!node && methods == 0) {
        http_reply_error(r, 404, NULL, "unknown path %.200s", q->path);
        return false;
    }
    if (!node) {
        allow_field(r, "Allow", methods);
        http_reply_error(r, 405, NULL, "method %s is not allowed for %.200s",
                         http_parser_method(&r->conn->parser), q->path);
        return false;
    }
    if (node->prefix != SIZE_MAX)
        q->rest = q->path + node->prefix;
    const char *coding = http_header_get(q, "content-encoding");
    if (coding && strcasecmp(coding, "identity") != 0) {
        http_reply_error(r, 415, NULL, "Content-Encoding %.200s is not supported", coding);
        return false;
    }
    if (node->route.json_body && !is_json(http_header_get(q, "content-type"))) {
        http_reply_error(r, 415, NULL,
                         "Content-Type %.200s is not supported: send application/json",
                         http_header_get(q, "content-type"));
        return false;
    }
    return check_admission(r);
}

void route_run(struct http_reply *r) {
    struct http_parser *p = &r->conn->parser;
    if (!check_admission(r)) /* the drain may have begun while the body came in */
        return;
    r->request.body = p->body ? p->body : "";
    r->request.body_bytes = p->body_bytes;
    r->request.arrived = clock_seconds();
    if (r->route->admits) {
        r->counted = true;
        r->conn->http->in_flight++;
    }
    r->handled = true;
    r->route->handle(r->route->arg, &r->request, r);
}
