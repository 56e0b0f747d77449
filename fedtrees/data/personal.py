"""Detect columns that seem to contain personal data, in order to warn before a run."""

import re
from collections.abc import Iterable

# Complete words of a column name in English, German, French, Italian and Spanish, by kind.
_WORDS = {
    "name": "name surname lastname firstname forename nachname vorname familienname nom prenom "
            "prénom nome cognome nombre apellido",
    "address": "address street adresse strasse straße str hausnummer rue indirizzo via direccion "
               "dirección calle",
    "postal code": "zip zipcode postcode postal plz postleitzahl cap cp",
    "e-mail": "email mail e-mail correo",
    "telephone": "phone telephone tel mobile telefon handy telefono teléfono",
    "birth date": "birth birthdate birthday dob geburtsdatum geburtstag geboren naissance nascita "
                  "nacimiento",
    "identifier": "ssn passport insurance versichertennummer sozialversicherungsnummer ahv iban "
                  "mrn patientid patientennummer patient_id steuernummer",
}  # fmt: skip
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_E_MAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[a-zA-Z]{2,}$")
LOOKED_AT = 50  # number of cells that are inspected


def kind_of(name: str, cells: Iterable[str] = ()) -> str:
    """Return the kind of personal data that a column seems to contain, empty if there is none.

    `cells` are some of its cells. E-mail addresses are recognised by their form.
    """
    spaced = re.sub(r"(?<=[a-zà-ÿ])(?=[A-Z])", " ", name)
    words = [w for w in re.split(r"[^0-9a-zA-ZÀ-ÿß]+", spaced.lower()) if w]
    for text in (*words, "".join(words), "_".join(words)):
        if text in _KINDS:
            return _KINDS[text]
    shown = [cell for cell, _ in zip(cells, range(LOOKED_AT), strict=False) if cell]
    if shown and all(_E_MAIL.match(cell) for cell in shown):
        return "e-mail"
    return ""
