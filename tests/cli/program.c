/* program.c: see program.h. */
#include "tests/cli/program.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct outcome last;
static char directory[256];

static char *slurp(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, f), (size_t)n);
    data[n] = 0;
    fclose(f);
    if (bytes)
        *bytes = (size_t)n;
    return data;
}

const char *scratch(const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

void write_scratch(const char *name, const void *data, size_t n) {
    FILE *f = fopen(scratch(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

void copy_scratch(const char *from, const char *to) {
    char source[4608];
    mkdir(scratch(to), 0755);
    DIR *d = opendir(source_path(from));
    assert_non_null(d);
    struct dirent *e;
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(source, sizeof source, "%s/%s", source_path(from), e->d_name);
        struct stat st;
        if (stat(source, &st) || !S_ISREG(st.st_mode))
            continue;
        size_t n;
        char *data = slurp(source, &n), name[300];
        snprintf(name, sizeof name, "%s/%s", to, e->d_name);
        write_scratch(name, data, n);
        free(data);
    }
    closedir(d);
}

/* Cuts a line into words; `store` holds their text. */
static int cut(const char *line, char *store, size_t cap, char **argv, int max) {
    int argc = 0;
    char *w = store, *end = store + cap - 1;
    while (*line) {
        while (*line == ' ')
            line++;
        if (!*line)
            break;
        assert_true(argc < max - 1);
        argv[argc++] = w;
        if (*line == '@' || *line == '%') {
            w += snprintf(w, (size_t)(end - w), "%s", *line == '@' ? source_path("") : scratch(""));
            line++;
        }
        bool quoted = false;
        for (; *line && (quoted || *line != ' '); line++) {
            assert_true(w < end);
            if (*line == '\'')
                quoted = !quoted;
            else
                *w++ = *line;
        }
        *w++ = 0;
    }
    argv[argc] = NULL;
    return argc;
}

static pid_t spawn(const char *line, const char *in, const char *out, const char *err) {
    static char store[16384];
    char *argv[80];
    const char *exe = getenv("WEIR_EXE");
    assert_non_null(exe);
    argv[0] = (char *)(uintptr_t)exe;
    cut(line, store, sizeof store, argv + 1, 78);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int i = open(in, O_RDONLY), o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        int e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (i < 0 || o < 0 || e < 0 || dup2(i, 0) < 0 || dup2(o, 1) < 0 || dup2(e, 2) < 0)
            _exit(126);
        unsetenv("WEIR_EXE"); /* of these tests, and no options */
        unsetenv("WEIR_SOURCE_ROOT");
        execv(exe, argv);
        _exit(127);
    }
    return pid;
}

static int wait_for(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const struct outcome *run(const char *input, const char *line) {
    char out[1024], err[1024], in[1024];
    snprintf(out, sizeof out, "%s", scratch("out"));
    snprintf(err, sizeof err, "%s", scratch("err"));
    snprintf(in, sizeof in, "%s", scratch("in"));
    write_scratch("in", input ? input : "", input ? strlen(input) : 0);
    int status = wait_for(spawn(line, in, out, err));
    free(last.out);
    free(last.err);
    last.status = status;
    last.out = slurp(out, &last.out_bytes);
    last.err = slurp(err, NULL);
    return &last;
}

pid_t start(const char *line, const char *out_file) {
    return start_with_input(line, "/dev/null", out_file);
}

pid_t start_with_input(const char *line, const char *in_path, const char *out_file) {
    char out[1024], err[1024];
    snprintf(out, sizeof out, "%s", scratch(out_file));
    snprintf(err, sizeof err, "%s", scratch("started-err"));
    return spawn(line, in_path, out, err);
}

int finish(pid_t pid, int signal) {
    kill(pid, signal);
    return wait_for(pid);
}

const struct outcome *last_outcome(void) {
    return &last;
}

void succeeds(const char *input, const char *line) {
    run(input, line);
    if (last.status != 0)
        fail_msg("`weir %s` ended with %d: %s", line, last.status, last.err);
}

void fails(int status, const char *line, const char *part) {
    run(NULL, line);
    size_t n = strlen(last.err);
    if (last.status != status)
        fail_msg("`weir %s` ended with %d, not %d: %s", line, last.status, status, last.err);
    if (strncmp(last.err, "weir: ", 6) || n < 8 || strchr(last.err, '\n') != last.err + n - 1)
        fail_msg("`weir %s` did not print one line: %s", line, last.err);
    if (!strstr(last.err, part))
        fail_msg("`weir %s` said '%s', without '%s'", line, last.err, part);
}

json_t *run_json(const char *input, const char *line) {
    json_error_t fault;
    run(input, line);
    json_t *value =
        json_loadb(last.out, last.out_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &fault);
    if (!value)
        fail_msg("`weir %s` (%d) printed no single JSON object: %s\n%s\n%s", line, last.status,
                 fault.text, last.out, last.err);
    assert_true(json_is_object(value));
    return value;
}

int program_setup(void **state) {
    const char *tmp = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/weir-cli-XXXXXX", tmp ? tmp : "/tmp");
    /* Nothing of the caller's environment may pass for an option. */
    unsetenv("WEIR_MODEL");
    unsetenv("WEIR_CONFIG");
    if (!mkdtemp(directory))
        return -1;
    setenv("XDG_DATA_HOME", directory, 1);  /* no test may write the user's run history ... */
    setenv("XDG_CACHE_HOME", directory, 1); /* ... or go by the user's table of variants */
    return 0;
}

static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char below[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (unlink(below))
            remove_tree(below);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

int program_teardown(void **state) {
    free(last.out);
    free(last.err);
    last = (struct outcome){0};
    remove_tree(directory);
    return 0;
}
