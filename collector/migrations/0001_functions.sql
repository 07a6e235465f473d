-- Edges and middles of histogram buckets.
--
-- A bucket is its index in an HDR histogram of 2 significant digits from 1 us (scheme
-- `hdr_us_2sd_1_60s`): 128 sub-buckets, each octave twice as wide. The same formula is
-- `bucket_low_us` and `bucket_high_us` in epwatch-proto. Functions are global to a server, hence
-- the prefix.
CREATE OR REPLACE FUNCTION epwatch_bucket_low_us ${on_cluster} AS (i) ->
    toUInt64(if(i < 128, toUInt64(i), bitShiftLeft(toUInt64(bitAnd(i, 127) + 128), toUInt8(intDiv(i, 128) - 1))));

-- The first microsecond that is beyond the bucket.
CREATE OR REPLACE FUNCTION epwatch_bucket_high_us ${on_cluster} AS (i) ->
    toUInt64(if(i < 128, toUInt64(i) + 1, bitShiftLeft(toUInt64(bitAnd(i, 127) + 129), toUInt8(intDiv(i, 128) - 1))));

-- The middle of a bucket: what a quantile of a merged histogram is shown as.
CREATE OR REPLACE FUNCTION epwatch_bucket_mid_us ${on_cluster} AS (i) ->
    (epwatch_bucket_low_us(i) + epwatch_bucket_high_us(i)) / 2;

-- Roll-ups are built in slices of an app's installations, so that a deletion rebuilds one slice.
CREATE OR REPLACE FUNCTION epwatch_slice ${on_cluster} AS (installation) ->
    toUInt8(reinterpretAsUInt8(substring(installation, 1, 1)) % 4);
