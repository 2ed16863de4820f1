"""banking77 with ten labels instead of 77: which intent belongs to which label of banking77-ten.toml.

python tests/bench/banking77_groups.py tests/data/banking77/sample.csv ten.csv

writes the texts of a file with the columns `text` and `category`, with their groups in the column `label`.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

GROUPS: dict[str, tuple[str, ...]] = {
    "ordering": (
        *("card_arrival", "card_delivery_estimate", "get_physical_card", "order_physical_card", "getting_spare_card"),
        *("getting_virtual_card", "get_disposable_virtual_card", "disposable_card_limits", "card_about_to_expire"),
        *("visa_or_mastercard",),
    ),
    "card": (
        *("activate_my_card", "card_linking", "card_not_working", "contactless_not_working"),
        *("virtual_card_not_working", "card_acceptance", "apple_pay_or_google_pay"),
    ),
    "security": (
        *("lost_or_stolen_card", "lost_or_stolen_phone", "compromised_card", "pin_blocked", "change_pin"),
        *("passcode_forgotten",),
    ),
    "cash": (
        *("pending_cash_withdrawal", "declined_cash_withdrawal", "cash_withdrawal_not_recognised"),
        *("wrong_amount_of_cash_received", "atm_support", "card_swallowed"),
    ),
    "exchange": (
        *("exchange_rate", "exchange_via_app", "card_payment_wrong_exchange_rate"),
        *("wrong_exchange_rate_for_cash_withdrawal", "fiat_currency_support", "supported_cards_and_currencies"),
    ),
    "fees": (
        *("card_payment_fee_charged", "cash_withdrawal_charge", "exchange_charge", "extra_charge_on_statement"),
        *("top_up_by_bank_transfer_charge", "top_up_by_card_charge", "transfer_fee_charged"),
    ),
    "top-up": (
        *("automatic_top_up", "pending_top_up", "top_up_failed", "top_up_limits", "top_up_reverted", "verify_top_up"),
        *("topping_up_by_card", "top_up_by_cash_or_cheque", "balance_not_updated_after_cheque_or_cash_deposit"),
    ),
    "transfer": (
        *("cancel_transfer", "declined_transfer", "failed_transfer", "pending_transfer", "transfer_timing"),
        *("transfer_not_received_by_recipient", "transfer_into_account", "receiving_money", "beneficiary_not_allowed"),
        *("balance_not_updated_after_bank_transfer",),
    ),
    "payment": (
        *("card_payment_not_recognised", "direct_debit_payment_not_recognised", "declined_card_payment"),
        *("pending_card_payment", "reverted_card_payment?", "transaction_charged_twice", "request_refund"),
        *("Refund_not_showing_up",),
    ),
    "account": (
        *("verify_my_identity", "why_verify_identity", "unable_to_verify_identity", "verify_source_of_funds"),
        *("edit_personal_details", "age_limit", "country_support", "terminate_account"),
    ),
}
LABEL_OF = {intent: label for label, intents in GROUPS.items() for intent in intents}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the grouped file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="CSV with the columns text and category")
    parser.add_argument("output", type=Path, help="CSV with the columns text and label")
    arguments = parser.parse_args(argv)
    with arguments.source.open(encoding="utf-8", newline="") as stream:
        rows = [(row["text"], LABEL_OF[row["category"]]) for row in csv.DictReader(stream)]
    with arguments.output.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
