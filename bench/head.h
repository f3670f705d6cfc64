/* The first lines of every result: what was measured, where and when. */
#ifndef PHASOR_BENCH_HEAD_H
#define PHASOR_BENCH_HEAD_H

/* Date, commit, when the program was built, processor, system and command, a comment line each. */
void bench_print_head(int argc, char **argv);

/* The tree's, as git describes it; "" where that is not known. */
void bench_commit(char out[64]);

#endif
