/* weir_serve_run while the model loads: an API whose opening takes its time stands for a large
 * checkpoint. Each case runs the server in a child process and looks at it from outside. */
#include "tests/test.h"

#include "base/error.h"
#include "serve/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static weir_status slow_open(struct server *s, void **api, weir_error *err) {
    usleep(3500 * 1000);
    *api = s;
    return WEIR_OK;
}

static weir_status failing_open(struct server *s, void **api, weir_error *err) {
    return weir_fail(err, WEIR_BAD_FILE, "some/file", "is not as it must be");
}

static weir_status slow_failing_open(struct server *s, void **api, weir_error *err) {
    usleep(3000 * 1000);
    return failing_open(s, api, err);
}

static void work(void *arg, struct http_request *q, struct http_reply *r) {
    http_reply_json(r, 200, "{}", 2);
}

static void routes(void *api, struct http *h) {
    http_route(h, &(struct http_route){HTTP_GET, "/work", HTTP_KEY, false, true, work, NULL});
}

static void nothing(void *api) {}

struct run {
    pid_t pid;
    uint16_t port;
    FILE *out; /* the child's standard output */
};

/* A port that was free a moment ago. */
static uint16_t free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static struct run start(weir_status (*open)(struct server *, void **, weir_error *)) {
    struct run r = {.port = free_port()};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    r.pid = fork();
    assert_true(r.pid >= 0);
    if (r.pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        struct serve_config config = serve_config_default();
        config.model_dir = source_path("models/tiny-k3");
        config.engine.compute = WEIR_COMPUTE_NULL;
        config.port = r.port;
        config.access_log = false;
        const struct serve_api api = {open, routes, nothing, nothing};
        weir_error err = {0};
        int status = weir_serve_run_with(&config, &api, &err);
        if (status)
            fprintf(stderr, "weir: %s: %s\n", err.where, err.message);
        exit(status && strcmp(err.where, "some/file") == 0 ? 77 : status);
    }
    close(ends[1]);
    r.out = fdopen(ends[0], "r");
    return r;
}

/* Status of GET path; 0: connection refused. */
static int status_of(const struct run *r, const char *path) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(r->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char text[4096] = "";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        assert_int_equal(errno, ECONNREFUSED);
        close(fd);
        return 0;
    }
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.0\r\n\r\n", path);
    assert_int_equal(write(fd, text, (size_t)n), n);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    assert_true(got > 12);
    return atoi(text + 9);
}

static int wait_for_status(const struct run *r, const char *path, int status) {
    for (int i = 0; i < 1000; i++) {
        int now = status_of(r, path);
        if (now == status)
            return now;
        usleep(20 * 1000);
    }
    return -1;
}

static int end(struct run *r) {
    int status;
    fclose(r->out);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_long_load_is_watched_through_health(void **state) {
    struct run r = start(slow_open);
    char line[128] = "", expected[64];
    assert_int_equal(status_of(&r, "/health"), 0); /* the port is bound, and refuses */
    assert_int_equal(wait_for_status(&r, "/health", 503), 503);
    assert_int_equal(status_of(&r, "/ready"), 503);
    assert_int_equal(status_of(&r, "/version"), 200);
    assert_int_equal(status_of(&r, "/get_model_info"), 503);
    assert_int_equal(status_of(&r, "/health_generate"), 503);
    assert_int_equal(status_of(&r, "/metrics"), 200);
    assert_int_equal(status_of(&r, "/work"), 503); /* comes with the model: not there *yet* */
    assert_int_equal(wait_for_status(&r, "/health", 200), 200);
    assert_int_equal(status_of(&r, "/nowhere"), 404);
    assert_int_equal(status_of(&r, "/ready"), 200);
    assert_int_equal(status_of(&r, "/work"), 200);
    assert_non_null(fgets(line, sizeof line, r.out));
    snprintf(expected, sizeof expected, "ready: http://127.0.0.1:%u\n", r.port);
    assert_string_equal(line, expected);
    kill(r.pid, SIGTERM);
    assert_int_equal(end(&r), 0);
}

static void F001_what_is_refused_never_opened_the_port(void **state) {
    struct run r = start(failing_open);
    int status = 0;
    while (waitpid(r.pid, &status, WNOHANG) == 0) {
        assert_int_equal(status_of(&r, "/health"), 0);
        usleep(5000);
    }
    assert_int_equal(WEXITSTATUS(status), 77);
    assert_int_equal(fgetc(r.out), EOF); /* no ready line */
    fclose(r.out);
}

static void a_late_refusal_ends_the_server_unready(void **state) {
    struct run r = start(slow_failing_open);
    assert_int_equal(wait_for_status(&r, "/health", 503), 503);
    assert_int_equal(fgetc(r.out), EOF);
    assert_int_equal(end(&r), 77);
}

static void F083_sigterm_while_loading_ends_with_0(void **state) {
    struct run r = start(slow_open);
    assert_int_equal(wait_for_status(&r, "/health", 503), 503);
    kill(r.pid, SIGTERM);
    assert_int_equal(fgetc(r.out), EOF);
    assert_int_equal(end(&r), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_load_is_watched_through_health),
        cmocka_unit_test(F001_what_is_refused_never_opened_the_port),
        cmocka_unit_test(a_late_refusal_ends_the_server_unready),
        cmocka_unit_test(F083_sigterm_while_loading_ends_with_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
