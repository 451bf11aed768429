/* The request parser and the path rule, without sockets. */
#include "tests/test.h"

#include "base/rng.h"
#include "serve/http_parse.h"
#include "serve/http_path.h"

static const struct http_limits limits = {
    .line_bytes = 8192, .header_bytes = 65536, .fields = 100, .body_bytes = 1000};

/* Everything a request came to, as text. */
static void outcome(struct http_parser *p, enum http_parse_result r, size_t taken, char *out,
                    size_t n) {
    int k = snprintf(out, n, "r=%d taken=%zu status=%d %s|", r, taken, p->status,
                     p->fault ? p->fault : "");
    if (r == HTTP_PARSE_DONE) {
        k += snprintf(out + k, n - (size_t)k, "%s %s ?%s 1.%u keep=%d |", http_parser_method(p),
                      p->path, http_parser_query(p), p->minor, p->keep_alive);
        for (uint32_t i = 0; i < p->n_fields; i++) {
            struct http_header f = http_parser_header(p, i);
            k += snprintf(out + k, n - (size_t)k, "%s=%s|", f.name, f.value);
        }
        snprintf(out + k, n - (size_t)k, "%zu:%s", p->body_bytes, p->body ? p->body : "");
    }
}

/* Feeds `data` in random pieces. */
static void parse(const char *data, size_t n, uint64_t seed, char *out, size_t out_bytes) {
    struct http_parser p;
    http_parser_open(&p, &limits);
    enum http_parse_result r = HTTP_PARSE_MORE;
    size_t at = 0;
    uint64_t draws = 0;
    while (r == HTTP_PARSE_MORE || r == HTTP_PARSE_HEAD) {
        size_t piece = seed ? 1 + rng_at(seed, 0, draws++) % 7 : n;
        size_t left = n - at, taken;
        if (left == 0 && r == HTTP_PARSE_MORE)
            break;
        r = http_parse(&p, data + at, piece < left ? piece : left, &taken);
        at += taken;
    }
    outcome(&p, r, at, out, out_bytes);
    http_parser_reset(&p);
}

static void the_cut_of_the_input_changes_nothing(void **state) {
    static const char *const requests[] = {
        "GET /a/../b?x=1&y HTTP/1.1\r\nHost: h\r\nX-Y: \t v v \t\r\n\r\nGET /next",
        "\r\nPOST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabcdef",
        ("POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
         "a;x=y\r\n0123456789\r\n1\r\n!\r\n000\r\nT: v\r\n\r\nrest"),
        "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdeX",
        "POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\n X: h\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\n",
        "GET http://host HTTP/1.1\r\nHost: h\r\nConnection: a, close\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        char whole[4096], cut[4096];
        parse(requests[i], strlen(requests[i]), 0, whole, sizeof whole);
        for (uint64_t seed = 1; seed <= 300; seed++) {
            parse(requests[i], strlen(requests[i]), seed, cut, sizeof cut);
            if (strcmp(whole, cut) != 0)
                fail_msg("request %zu, seed %d: %s instead of %s", i, (int)seed, cut, whole);
        }
    }
}

static void a_request_is_taken_apart(void **state) {
    char out[4096];
    const char *s = "POST /a%20b//c/?q=%41 HTTP/1.1\r\nHOST: h\r\nContent-Length: 2\r\n"
                    "Connection: Close\r\n\r\n{}GET";
    parse(s, strlen(s), 0, out, sizeof out);
    assert_string_equal(out, "r=2 taken=83 status=0 |POST /a b/c ?q=%41 1.1 keep=0 |host=h|"
                             "content-length=2|connection=Close|2:{}");
}

static void a_parser_serves_request_after_request(void **state) {
    struct http_parser p;
    http_parser_open(&p, &limits);
    for (int i = 0; i < 3; i++) {
        const char *s = "PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nz";
        size_t taken, rest;
        assert_true(http_parser_idle(&p));
        assert_int_equal(http_parse(&p, s, strlen(s), &taken), HTTP_PARSE_HEAD);
        assert_false(http_parser_idle(&p));
        assert_int_equal(http_parse(&p, s + taken, strlen(s) - taken, &rest), HTTP_PARSE_DONE);
        assert_int_equal(p.method, HTTP_PUT);
        http_parser_reset(&p);
    }
}

static void an_announced_body_takes_memory_as_it_comes(void **state) {
    static const struct http_limits large = {
        .line_bytes = 8192, .header_bytes = 65536, .fields = 100, .body_bytes = 1 << 30};
    struct http_parser p;
    http_parser_open(&p, &large);
    const char *s = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n";
    size_t taken;
    assert_int_equal(http_parse(&p, s, strlen(s), &taken), HTTP_PARSE_HEAD);
    assert_int_equal(http_parse(&p, "abc", 3, &taken), HTTP_PARSE_MORE);
    assert_int_equal(p.body_bytes, 3);
    assert_true(p.body_space <= 4096);
    http_parser_reset(&p);
}

static void paths_have_one_spelling(void **state) {
    static const struct {
        const char *target, *path;
        size_t query;
    } good[] = {
        {"/", "/", 1},
        {"//", "/", 2},
        {"/v1/models", "/v1/models", 10},
        {"/v1//models/", "/v1/models", 12},
        {"/v1/./models/.", "/v1/models", 14},
        {"/a/b/../../v1/models", "/v1/models", 20},
        {"/../../v1", "/v1", 9},
        {"/v1/..", "/", 6},
        {"/%2e%2E/v1", "/v1", 10},
        {"/v1%2Fmodels", "/v1/models", 12},
        {"/%252e", "/%2e", 6},
        {"/...", "/...", 4},
        {"/.a/..b", "/.a/..b", 7},
        {"/a?b/../c", "/a", 3},
        {"/?", "/", 2},
        {"/a%3Fb", "/a?b", 6},
    };
    char out[64];
    size_t query;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_null(http_path_normalise(good[i].target, strlen(good[i].target), out, &query));
        assert_string_equal(out, good[i].path);
        assert_int_equal(query, good[i].query);
    }
    static const char *const wrong[] = {"", "a", "*", "/%", "/%4", "/%4g", "/%00", "/%?41"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(http_path_normalise(wrong[i], strlen(wrong[i]), out, &query));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cut_of_the_input_changes_nothing),
        cmocka_unit_test(a_request_is_taken_apart),
        cmocka_unit_test(a_parser_serves_request_after_request),
        cmocka_unit_test(an_announced_body_takes_memory_as_it_comes),
        cmocka_unit_test(paths_have_one_spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
