/* A rank's share as builds before CUDA 12.5 have it: the whole, whatever the driver could do. The
 * source is built a second time for it, under other names. */
#define CUDA_PARTITION_IS_BUILT 0
#define cuda_partition_init     absent_partition_init
#define cuda_partition_deinit   absent_partition_deinit
#define cuda_partition_stream   absent_partition_stream
#define cuda_partition_expect   absent_partition_expect
#include "kernels/cuda/device/cuda_partition.c"

#include <criterion/criterion.h>

#include "simt_control.h"

TestSuite(cuda_partition_absent, .timeout = 60);

Test(cuda_partition_absent, a_share_is_the_whole)
{
    struct cuda_partition partition;
    cudaStream_t stream;
    unsigned first, count;
    simt_multiprocessors_set(132);
    cr_assert_eq(cudaSetDevice(0), cudaSuccess);
    const struct gpu_share share = {.sharer_count = 4, .sharer_index = 3};
    cr_expect_eq(cuda_partition_expect(&share, 90), 0);
    cuda_partition_init(&partition, &share, 90, 132);
    cr_expect_null(partition.context);
    cr_expect_eq(partition.multiprocessors, 132);
    cr_assert_eq(cuda_partition_stream(&partition, &stream, 0), cudaSuccess);
    cr_expect_not(simt_stream_part(stream, &first, &count));
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    cuda_partition_deinit(&partition);
    cr_expect_eq(simt_live_count(), 0);
}
