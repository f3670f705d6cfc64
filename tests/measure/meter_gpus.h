/* The devices of what is measured, which the program has chosen: meter_no_gpus.c or
 * cuda_measure/meter_gpus.c. */
#ifndef METER_GPUS_H
#define METER_GPUS_H

/* As box_params.gpus: NULL, or those of ranks that are GPUs; another arrangement each time. */
const int *meter_gpus(int rank_count);

#endif
