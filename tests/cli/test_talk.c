/* test_talk.c: the commands that run a model: generate, render, chat, serve. */
#include "tests/cli/program.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "(none)";
}

/* The golden greedy continuation of one case, from the command line. */
static void continues_as_golden(const char *model, size_t index, const char *compute) {
    char path[128], line[8192];
    snprintf(path, sizeof path, "vectors/%s/manifest.json", model);
    json_t *m = json_load_file(source_path(path), 0, NULL);
    assert_non_null(m);
    const json_t *c = json_array_get(json_object_get(m, "cases"), index);
    json_t *want = json_object_get(json_object_get(c, "greedy"), "ids");
    char *ids = json_dumps(json_object_get(c, "ids"), JSON_COMPACT);
    ids[strlen(ids) - 1] = 0;
    snprintf(line, sizeof line,
             "generate --model @models/%s --prompt-ids %s --max-tokens %zu --temperature 0 "
             "--ignore-eos --compute %s --json",
             model, ids + 1, json_array_size(want), compute);
    json_t *got = run_json(NULL, line);
    assert_int_equal(last_outcome()->status, 0);
    if (!json_equal(json_object_get(got, "ids"), want))
        fail_msg("%s, case %zu, %s: other ids", model, index, compute);
    assert_string_equal(text_of(got, "finish_reason"), "length");
    json_decref(got);
    json_decref(m);
    free(ids);
}

static void generate_continues_as_the_golden_numbers_say(void **state) {
    for (size_t i = 0; i < 5; i++)
        continues_as_golden("micro-k3-odd", i, "exact");
    for (size_t i = 0; i < 3; i++)
        continues_as_golden("micro-kimi-linear", i, "exact");
    continues_as_golden("tiny-k3", 0, "exact");
    continues_as_golden("tiny-k3", 2, "exact");
    continues_as_golden("tiny-k3", 0, "fast");
}

static void generate_draws_by_seed(void **state) {
    char *first = NULL;
    static const char *const line = "generate --model @models/tiny-k3 --prompt 'And the king "
                                    "answered' --max-tokens 24 --seed %d";
    size_t same = 0;
    for (int seed = 1; seed <= 4; seed++) {
        char both[256];
        snprintf(both, sizeof both, line, seed);
        succeeds(NULL, both);
        char *once = strdup(last_outcome()->out);
        succeeds(NULL, both);
        assert_string_equal(last_outcome()->out, once);
        same += first && !strcmp(first, once);
        if (!first)
            first = strdup(once);
        free(once);
    }
    assert_int_equal(same, 0);
    free(first);
}

static void generate_stops_at_a_text_that_spans_tokens(void **state) {
    json_t *got = run_json(NULL, "generate --model @models/tiny-k3 --prompt 'She had been long' "
                                 "--max-tokens 40 --temperature 0 --stop 'ry much' --json");
    assert_string_equal(text_of(got, "text"), " enough to have herself. She had been ve");
    assert_string_equal(text_of(got, "finish_reason"), "stop");
    json_decref(got);
}

static void generate_says_which_prompt_is_wrong(void **state) {
    fails(2, "generate --model @models/tiny-k3", "needs one of --prompt, --prompt-ids and --chat");
    fails(2, "generate --model @models/tiny-k3 --prompt a --prompt-ids 1", "several are given");
    fails(2, "generate --model @models/tiny-k3 --prompt-ids 1,2816", "id 1 is '2816'");
    fails(2, "generate --model @models/tiny-k3 --prompt-ids ,", "id 0 is ''");
    fails(1, "generate --model @models/micro-k3-odd --prompt hello", "given as --prompt-ids");
    fails(1, "generate --model @models/tiny-k3 --chat %none.json", "none.json");
    fails(1, "generate --model @models/tiny-k3 --prompt-ids 1 --max-model-len 8 --max-tokens 8",
          "exceed the context of 8 tokens");
}

static const char question[] = "{\"messages\":[{\"role\":\"user\",\"content\":"
                               "\"What is the capital of Norway?\"}]}";

static void generate_answers_a_chat_request(void **state) {
    write_scratch("q.json", question, sizeof question - 1);
    json_t *got = run_json(NULL, "generate --model @models/tiny-k3 --chat %q.json --temperature 0 "
                                 "--json");
    assert_string_equal(text_of(got, "text"), "The capital of Norway is Oslo.");
    assert_string_equal(text_of(got, "reasoning_content"),
                        "The user asks for the capital of Norway. It is Oslo.");
    assert_string_equal(text_of(got, "finish_reason"), "stop");
    json_t *rendered = run_json(question, "render --model @models/tiny-k3 --json");
    assert_true(json_equal(json_object_get(rendered, "ids"), json_object_get(got, "prompt_ids")));
    json_decref(rendered);
    json_decref(got);
    /* Its sampling fields count, and an option wins over them. */
    static const char asked[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],"
                                "\"max_tokens\":3,\"temperature\":0}";
    static const char two[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"n\":2}";
    write_scratch("asked.json", asked, sizeof asked - 1);
    write_scratch("two.json", two, sizeof two - 1);
    got = run_json(NULL, "generate --model @models/tiny-k3 --chat %asked.json --json");
    assert_int_equal(json_array_size(json_object_get(got, "ids")), 3);
    json_decref(got);
    got =
        run_json(NULL, "generate --model @models/tiny-k3 --chat %asked.json --max-tokens 2 --json");
    assert_int_equal(json_array_size(json_object_get(got, "ids")), 2);
    json_decref(got);
    fails(1, "generate --model @models/tiny-k3 --chat %two.json", "two.json: n: ");
    /* An array alone is the messages. */
    json_decref(run_json("[{\"role\":\"user\",\"content\":\"Hi\"}]",
                         "render --model @models/tiny-k3 --json"));
    run("{\"messages\":[{\"role\":\"usr\",\"content\":\"x\"}]}", "render --model @models/tiny-k3");
    assert_int_equal(last_outcome()->status, 1);
    assert_non_null(strstr(last_outcome()->err, "messages.0.role"));
}

static void generate_without_computing_answers_at_once(void **state) {
    json_t *got = run_json(NULL, "generate --model @models/tiny-k3 --compute null --prompt-ids 1,2 "
                                 "--max-tokens 50 --ignore-eos --json");
    assert_int_equal(json_array_size(json_object_get(got, "ids")), 50);
    json_decref(got);
}

/* Waits for the first line of a file, 20 s at most; "" when it does not come. */
static const char *first_line(const char *name) {
    static char line[256];
    for (int i = 0; i < 2000; i++) {
        FILE *f = fopen(scratch(name), "r");
        bool whole = f && fgets(line, sizeof line, f) && strchr(line, '\n');
        if (f)
            fclose(f);
        if (whole) {
            line[strcspn(line, "\n")] = 0;
            return line;
        }
        usleep(10000);
    }
    return "";
}

static void chat_in_a_pipe_answers_line_by_line(void **state) {
    succeeds("What is the capital of Norway?\n\n/set temperature 0\n/retry\n",
             "chat --model @models/tiny-k3 --set temperature=0 --set seed=1");
    assert_string_equal(last_outcome()->out,
                        "The capital of Norway is Oslo.\nThe capital of Norway is Oslo.\n");
    succeeds("\"\"\"\nWhat is the capital\nof Norway?\n\"\"\"\n",
             "chat --model @models/tiny-k3 --set max_tokens=2");
    run("/set temperature 7\nHello\n", "chat --model @models/tiny-k3");
    assert_int_equal(last_outcome()->status, 1);
    assert_non_null(strstr(last_outcome()->err, "temperature"));
    fails(2, "chat", "needs one of --model and --url");
    fails(2, "chat --model @models/tiny-k3 --set temperature", "NAME=VALUE");
    fails(2, "chat --model @models/tiny-k3 --set messages=1", "conversation itself");
    fails(2, "chat --url localhost", "http://HOST:PORT");
}

/* A failed connection says its cause: nobody listens, or another protocol is spoken. */
static void chat_names_the_cause_of_a_failed_connection(void **state) {
    fails(1, "chat --url http://127.0.0.1:1",
          "http://127.0.0.1:1: port 1 of 127.0.0.1: Connection "
          "refused");
    fails(1, "chat --url https://127.0.0.1:1", "Connection refused");
    pid_t server = start("serve --model @models/tiny-k3 --port 0 --compute null", "plain");
    const char *ready = first_line("plain");
    char line[256];
    snprintf(line, sizeof line, "serve --model @models/tiny-k3 --compute null --port %s",
             strrchr(ready, ':') ? strrchr(ready, ':') + 1 : "0");
    run(NULL, line);
    int taken = last_outcome()->status;
    char *in_use = strdup(last_outcome()->err);
    snprintf(line, sizeof line, "chat --url https%s",
             strncmp(ready, "ready: http", 11) ? "" : ready + 11);
    run("Hello\n", line);
    int status = last_outcome()->status;
    char *said = strdup(last_outcome()->err);
    finish(server, SIGTERM);
    assert_int_equal(status, 1);
    if (!strstr(said, "TLS"))
        fail_msg("%s", said);
    /* A port that is taken is a fault of the host, not of what was typed. */
    assert_int_equal(taken, 1);
    assert_non_null(strstr(in_use, "Address already in use"));
    assert_non_null(strstr(in_use, "127.0.0.1:"));
    free(said);
    free(in_use);
}

static void chat_keeps_the_conversation_as_it_is_sent_back(void **state) {
    char input[700];
    snprintf(input, sizeof input, "What is the capital of Norway?\nHello!\n/save %s\n",
             scratch("saved.json"));
    succeeds(input, "chat --model @models/tiny-k3 --set temperature=0 --system 'Be brief.'");
    json_t *saved = json_load_file(scratch("saved.json"), 0, NULL);
    json_t *messages = json_object_get(saved, "messages");
    assert_int_equal(json_array_size(messages), 5);
    static const char *const role[] = {"system", "user", "assistant", "user", "assistant"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(text_of(json_array_get(messages, i), "role"), role[i]);
    assert_string_equal(text_of(json_array_get(messages, 2), "content"),
                        "The capital of Norway is Oslo.");
    assert_string_equal(text_of(json_array_get(messages, 2), "reasoning_content"),
                        "The user asks for the capital of Norway. It is Oslo.");
    json_decref(saved);
}

static void serve_answers_the_chat_client_and_drains(void **state) {
    pid_t server = start("serve --model @models/tiny-k3 --port 0 --api-key secret", "served");
    const char *ready = first_line("served");
    if (strncmp(ready, "ready: http://127.0.0.1:", 24)) {
        finish(server, SIGKILL);
        fail_msg("the ready line is '%s'", ready);
    }
    char line[256];
    snprintf(line, sizeof line, "chat --url %s --api-key secret --set temperature=0", ready + 7);
    run("What is the capital of Norway?\nWhat is the capital of France?\n", line);
    int chat_status = last_outcome()->status;
    char *local, *remote = strdup(last_outcome()->out);
    snprintf(line, sizeof line, "chat --url %s/v1/ --api-key wrong", ready + 7);
    run("Hello\n", line);
    int refused = last_outcome()->status;
    char *said = strdup(last_outcome()->err);
    assert_int_equal(finish(server, SIGTERM), 0);
    assert_int_equal(chat_status, 0);
    assert_int_equal(refused, 2);
    assert_non_null(strstr(said, "status 401"));
    free(said);
    /* The same conversation in this process says the same. */
    succeeds("What is the capital of Norway?\nWhat is the capital of France?\n",
             "chat --model @models/tiny-k3 --set temperature=0");
    local = strdup(last_outcome()->out);
    assert_string_equal(remote, local);
    free(remote);
    free(local);
}

static void serve_refuses_a_bad_checkpoint_before_it_listens(void **state) {
    copy_scratch("models/tiny-k3", "cut");
    struct stat st;
    const char *shard = scratch("cut/model-00002-of-000002.safetensors");
    assert_int_equal(stat(shard, &st), 0);
    assert_int_equal(truncate(shard, st.st_size - 1), 0);
    fails(1, "serve --model %cut --port 0", "model-00002-of-000002.safetensors");
    assert_null(strstr(last_outcome()->out, "ready"));
    fails(1, "generate --model %cut --prompt a", "model-00002-of-000002.safetensors");
    fails(2, "serve --model @models/tiny-k3 --port 65536", "from 0 to 65535");
    fails(2, "serve --model @models/tiny-k3 --tls-cert x.pem", "needs --tls-key");
}

/* Ctrl-C stops the answer, not the program. Random weights go on to the end of the context. */
static void an_interrupt_stops_the_answer(void **state) {
    succeeds(NULL, "synth --preset tiny --seed 3 --out %made");
    char path[600];
    snprintf(path, sizeof path, "%s", scratch("talk"));
    assert_int_equal(mkfifo(path, 0600), 0);
    pid_t chat = start_with_input(
        "chat --model %made --set max_tokens=3000 --set chat_template_kwargs={\"thinking\":false}",
        path, "talked");
    FILE *in = fopen(path, "w");
    assert_non_null(in);
    fputs("Hello\n", in);
    fflush(in);
    struct stat st = {0};
    for (int i = 0; i < 2000 && st.st_size == 0; i++) {
        usleep(10000);
        stat(scratch("talked"), &st);
    }
    assert_true(st.st_size > 0);
    kill(chat, SIGINT);
    char saved[700];
    snprintf(saved, sizeof saved, "%s", scratch("talked.json"));
    fprintf(in, "/save %s\n", saved);
    fclose(in);
    assert_int_equal(finish(chat, 0), 0);
    json_t *m = json_load_file(saved, 0, NULL);
    assert_non_null(m);
    assert_int_equal(json_array_size(json_object_get(m, "messages")), 2);
    json_decref(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_continues_as_the_golden_numbers_say),
        cmocka_unit_test(generate_draws_by_seed),
        cmocka_unit_test(generate_stops_at_a_text_that_spans_tokens),
        cmocka_unit_test(generate_says_which_prompt_is_wrong),
        cmocka_unit_test(generate_answers_a_chat_request),
        cmocka_unit_test(generate_without_computing_answers_at_once),
        cmocka_unit_test(chat_in_a_pipe_answers_line_by_line),
        cmocka_unit_test(chat_names_the_cause_of_a_failed_connection),
        cmocka_unit_test(chat_keeps_the_conversation_as_it_is_sent_back),
        cmocka_unit_test(serve_answers_the_chat_client_and_drains),
        cmocka_unit_test(serve_refuses_a_bad_checkpoint_before_it_listens),
        cmocka_unit_test(an_interrupt_stops_the_answer),
    };
    return cmocka_run_group_tests_name("talk", tests, program_setup, program_teardown);
}
