# Runs a GoogleTest program as one test of ctest: run.sh <test> <product> <part> <parts> <program> <arguments>
#   SUITE_CASES=<folder>   the report goes to <folder>/<test>.xml: several tests may run one program
#   SUITE_CASE=<filter>    only these cases, whatever the test's own arguments choose
#   SUITE_SHARE=<number>   of a product of n > 1, one n-th of the cases is run, the share that this number chooses; else all
# The cases are dealt out to product * parts shards.
test=$1 product=$2 part=$3 parts=$4
shift 4
[ -n "$SUITE_CASES" ] && export GTEST_OUTPUT="xml:$SUITE_CASES/$test.xml"
case $SUITE_SHARE in
  "" | *[!0-9]*) product=1 share=0 ;;
  *) share=$((SUITE_SHARE % product)) ;;
esac
if [ $((product * parts)) -gt 1 ]; then
  export GTEST_TOTAL_SHARDS=$((product * parts)) GTEST_SHARD_INDEX=$((share * parts + part - 1))
fi
exec "$@" ${SUITE_CASE:+"--gtest_filter=$SUITE_CASE"}
