/* test_turns_kept.c: a server with a file of turns: read at the start, saved at the end, and left
 * alone when it is not ours. Each server is a child process, asked over HTTP. */
#include "tests/text/chat_test.h"

#include "base/error.h"
#include "base/file.h"
#include "serve/server.h"
#include "serve/turns.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/weir-kept-XXXXXX";

static const char *turns_file(void) {
    static char path[128];
    snprintf(path, sizeof path, "%s/turns", directory);
    return path;
}

struct run {
    pid_t pid;
    uint16_t port;
    FILE *out; /* the child's standard output */
};

static struct run start(void) {
    struct run r;
    int ends[2];
    char line[128];
    assert_int_equal(pipe(ends), 0);
    r.pid = fork();
    assert_true(r.pid >= 0);
    if (r.pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        struct serve_config config = serve_config_default();
        config.model_dir = source_path("models/tiny-k3");
        config.engine.compute = WEIR_COMPUTE_NULL;
        config.port = 0;
        config.access_log = false;
        config.turns_path = turns_file();
        weir_error err = {0};
        exit(weir_serve_run(&config, &err));
    }
    close(ends[1]);
    r.out = fdopen(ends[0], "r");
    assert_non_null(fgets(line, sizeof line, r.out));
    const char *colon = strrchr(line, ':');
    assert_non_null(colon);
    r.port = (uint16_t)atoi(colon + 1);
    return r;
}

static void end(struct run *r) {
    int status;
    kill(r->pid, SIGTERM);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    fclose(r->out);
}

/* The whole answer to a request, header and body; the caller frees it. */
static char *ask(const struct run *r, const char *method, const char *path, const char *body) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(r->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct text out = {0};
    char piece[4096];
    ssize_t got;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_true(dprintf(fd,
                        "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                        method, path, strlen(body), body) > 0);
    while ((got = read(fd, piece, sizeof piece)) > 0)
        text_append(&out, piece, (size_t)got);
    close(fd);
    assert_true(out.n > 0);
    return out.data;
}

static void answer_once(const struct run *r) {
    struct tokenizer *t = tiny_tokenizer();
    struct text text = {0}, body = {0};
    struct ids ids = {0};
    char number[24];
    expand("Hi{/response}{/m}", &text);
    tokenizer_encode_special(t, text.data, text.n, &ids);
    text_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],"
                     "\"reasoning_effort\":\"none\",\"max_tokens\":50,\"weir_output_ids\":[");
    for (size_t i = 0; i < ids.n; i++) {
        snprintf(number, sizeof number, "%s%d", i ? "," : "", ids.data[i]);
        text_puts(&body, number);
    }
    text_puts(&body, "]}");
    char *reply = ask(r, "POST", "/v1/chat/completions", body.data);
    assert_non_null(strstr(reply, "\"content\":\"Hi\""));
    free(reply);
    text_free(&text);
    text_free(&body);
    ids_free(&ids);
    tokenizer_close(t);
}

static int entries(const struct run *r) {
    char *reply = ask(r, "GET", "/metrics", "");
    const char *at = strstr(reply, "\nweir_turn_replay_entries{");
    assert_non_null(at);
    int n = atoi(strchr(at, '}') + 1);
    free(reply);
    return n;
}

static void turns_outlive_the_server(void **state) {
    struct run r = start();
    assert_int_equal(entries(&r), 0);
    answer_once(&r);
    assert_int_equal(entries(&r), 1);
    end(&r);
    struct turns *t = turns_open(1 << 20);
    weir_error err = {0};
    assert_int_equal(turns_load(t, turns_file(), 2816, &err), WEIR_OK);
    assert_int_equal(turns_stats(t).entries, 1);
    turns_close(t);
    r = start();
    assert_int_equal(entries(&r), 1);
    answer_once(&r); /* the same turn: its key does not depend on the process */
    assert_int_equal(entries(&r), 1);
    end(&r);
    unlink(turns_file());
}

static void assert_holds(const char *path, const char *want) {
    char *text;
    size_t bytes;
    weir_error err = {0};
    if (file_read(path, 1 << 20, &text, &bytes, &err) != WEIR_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_string_equal(text, want);
    free(text);
}

static void write_notes(const char *notes) {
    FILE *f = fopen(turns_file(), "w");
    fputs(notes, f);
    fclose(f);
}

static void a_file_of_another_kind_makes_way_and_saving_goes_on(void **state) {
    static const char *const notes[] = {"These are the notes of somebody else.\n", "weir"};
    char old[2][200];
    for (int i = 0; i < 2; i++) {
        snprintf(old[i], sizeof old[i], "%s.old-%d", turns_file(), i + 1);
        write_notes(notes[i]);
        struct run r = start();
        answer_once(&r);
        end(&r);
        assert_holds(old[i], notes[i]);
        r = start();
        assert_int_equal(entries(&r), 1);
        end(&r);
    }
    assert_holds(old[0], notes[0]);
    unlink(old[0]);
    unlink(old[1]);
    unlink(turns_file());
}

static int set_up(void **state) {
    return mkdtemp(directory) ? 0 : -1;
}

static int clean_up(void **state) {
    return rmdir(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_outlive_the_server),
        cmocka_unit_test(a_file_of_another_kind_makes_way_and_saving_goes_on),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
