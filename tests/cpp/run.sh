# Runs a GoogleTest program as one test of ctest: run.sh <test> <product> <part> <parts> <program> <arguments>
#   SUITE_CASES=<folder>   the report goes to <folder>/<test>.xml: several tests may run one program
#   SUITE_CASE=<filter>    only these cases, whatever the test's own arguments choose
#   SUITE_SHARE=<number>   of a product of n > 1, one n-th of the cases is run, the share that this number chooses; else all
#   SUITE_THIRD=<number>   of that, one third is run, which this number chooses, unless SUITE_WHOLE, a list of tests, has this one
#   SUITE_AGAIN=<folder>   the cases that <folder>/<test> has a filter for are run first, whatever share they are of
# The cases are dealt out to product * thirds * parts shards.
test=$1 product=$2 part=$3 parts=$4
shift 4
[ -n "$SUITE_CASES" ] && export GTEST_OUTPUT="xml:$SUITE_CASES/$test.xml"
case $SUITE_SHARE in
  "" | *[!0-9]*) product=1 share=0 ;;
  *) share=$((SUITE_SHARE % product)) ;;
esac
case " $SUITE_WHOLE " in
  *" $test "*) of=1 third=0 ;;
  *) [ -n "$SUITE_THIRD" ] && of=3 third=$((SUITE_THIRD % 3)) || of=1 third=0 ;;
esac
bad=0
if [ -n "$SUITE_AGAIN" ] && [ -f "$SUITE_AGAIN/$test" ]; then
  GTEST_OUTPUT="xml:$SUITE_CASES/$test.again.xml" "$@" --gtest_filter="$(cat "$SUITE_AGAIN/$test")" || bad=$?
fi
if [ $((product * of * parts)) -gt 1 ]; then
  export GTEST_TOTAL_SHARDS=$((product * of * parts)) GTEST_SHARD_INDEX=$(((product * third + share) * parts + part - 1))
fi
[ $bad = 0 ] && exec "$@" ${SUITE_CASE:+"--gtest_filter=$SUITE_CASE"}
"$@" ${SUITE_CASE:+"--gtest_filter=$SUITE_CASE"}
exit $bad
