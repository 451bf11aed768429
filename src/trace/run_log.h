/* run_log.h: a run's directory while the run goes on. Its records are written as calls end, by a
 * thread of their own, so that a run that is killed, or whose disk fills up, is not lost; run.json
 * says until the end that the run was not finished. Two runs cannot have one directory at once. */
#ifndef WEIR_TRACE_RUN_LOG_H
#define WEIR_TRACE_RUN_LOG_H

#include "trace/run.h"

struct run_log;

/* Makes `dir`, takes it, moves the files of a run that was there aside (NAME.before) and writes the
 * first run.json, so that a full disk is found now. WEIR_BAD_FILE, WEIR_NO_MEMORY. */
weir_status run_log_open(const char *dir, const struct run *r, struct run_log **out,
                         weir_error *err);
/* A call has ended. What is written is a copy; nothing here waits for the disk. */
void run_log_add(struct run_log *l, const struct call_record *r);
/* What went wrong, an errno; 0: nothing. No record is written behind it. */
int run_log_error(const struct run_log *l);
/* Behind run_write: drops what was moved aside. */
void run_log_close(struct run_log *l);
/* Nothing was measured: what was there is put back. */
void run_log_undo(struct run_log *l);
/* The run could not be written whole: all stays as it is. */
void run_log_leave(struct run_log *l);

#endif
